"""The policy of `--reward_on_error`."""

import pytest

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.rewards import OnError, checked_reward, describe_reward


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("raise", OnError(raises=True, value=None)),
        ("none", OnError(raises=False, value=None)),
        ("value:0", OnError(raises=False, value=0.0)),
        ("value:-1.5", OnError(raises=False, value=-1.5)),
        (" value: 2 ", OnError(raises=False, value=2.0)),
    ],
)
def test_the_three_policies_are_read(text, policy):
    assert OnError.parse(text) == policy


@pytest.mark.parametrize(
    "text", ["", "ignore", "value", "value:", "value:nan", "value:inf", "value:x", "raise:1", "none:2"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match=r"--reward_on_error got .*'value:X' with a finite number X"):
        OnError.parse(text)


@pytest.mark.parametrize("text", ["raise", "none", "value:-1.5"])
def test_a_policy_prints_as_it_is_written(text):
    assert str(OnError.parse(text)) == text


def test_messages_name_the_flag_as_it_is_typed():
    with pytest.raises(ConfigError, match=r"^--reward-on-error got 'ignore'"):
        OnError.parse("ignore", "--reward-on-error")

    def broken(completion):
        raise ValueError("no verdict")

    reward = checked_reward(describe_reward("x", broken), OnError.parse("raise", "--reward-on-error"))
    with pytest.raises(RewardError, match=r"; --reward-on-error none leaves such a row unscored$"):
        reward(["a"])
