"""ms-swift's own rewards in a service: those that need nothing of a run."""

import pytest

from swift_rlx.cli.reward_serve import MS_SWIFT_REWARDS
from swift_rlx.errors import PluginError
from swift_rlx.integration.stock_reward_names import stock_reward_names
from swift_rlx.reward_service import Row
from swift_rlx.reward_service.source_text import parse_source
from swift_rlx.reward_service.sources import ServedReward, find_loader, reward_finder
from swift_rlx.rewards import REWARDS, register_reward


def served(text: str) -> ServedReward:
    return ServedReward(parse_source(text), "", find_loader("none:none", {}), reward_finder(MS_SWIFT_REWARDS))


def test_a_reward_of_ms_swift_is_served_in_the_version_of_ms_swift() -> None:
    from importlib.metadata import version

    reward = served("format")
    good = "<think>2 + 2</think>\n<answer>4</answer>"
    assert reward.offer.version == version("ms-swift")
    assert reward.score([Row(good), Row("4")]).scores == [1.0, 0.0]
    assert served("answered=mean(format, format)").score([Row(good)]).scores == [1.0]


def test_one_that_reads_settings_of_a_run_is_refused_and_told_where_it_belongs() -> None:
    with pytest.raises(
        PluginError,
        match=r"^reward 'repetition' \(ms-swift [\d.]+\) reads the setting --repetition_n_grams of a run, which a"
        r" service has not: name it in the run's own --reward_funcs$",
    ):
        served("repetition")


def test_a_name_that_nobody_offers_is_refused_with_those_of_ms_swift() -> None:
    with pytest.raises(
        PluginError, match=r"unknown reward 'formt'.*ms-swift's own: .*did you mean ms-swift's 'format'"
    ):
        served("formt")


def test_what_a_plugin_file_registered_needs_no_ms_swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARDS, "_registered", {})
    register_reward("of_a_file")(lambda completion: 2.0)
    assert reward_finder("no_such_module:find", ["format"])("of_a_file").target("") == 2.0


def test_a_name_of_ms_swift_that_a_plugin_file_offers_too_is_refused_as_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(REWARDS, "_registered", dict(REWARDS._registered))
    register_reward("format")(lambda completion: 2.0)
    with pytest.raises(PluginError, match=r"'format' is offered by .*ms-swift"):
        reward_finder(MS_SWIFT_REWARDS, stock_reward_names())("format")
