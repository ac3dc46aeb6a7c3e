"""Versions of rewards in a run: a change is noticed, and no batch has two."""

import functools
from pathlib import Path

import pytest

from swift_rlx.errors import RewardError
from swift_rlx.rewards import describe_reward
from swift_rlx.rewards.version_watch import VersionChange, VersionWatch
from swift_rlx.rewards.versions import digest_of_model, digest_of_source


def test_a_change_ends_the_run_and_says_what_else_there_is() -> None:
    watch = VersionWatch(VersionChange.STOP)
    assert [watch.see("judge", "v3"), watch.see("judge", "v3"), watch.see("other", "1")] == [False] * 3
    with pytest.raises(
        RewardError, match=r"'judge' has the version 'v4' now, and scored with 'v3' before.*rescore"
    ):
        watch.see("judge", "v4")


def test_a_change_since_an_earlier_start_of_the_run_is_one() -> None:
    with pytest.raises(RewardError, match="'v4' now, and scored with 'v3'"):
        VersionWatch(VersionChange.STOP, {"judge": "v3"}).see("judge", "v4")


def test_answers_of_the_version_before_are_to_be_scored_by_the_newest() -> None:
    watch = VersionWatch(VersionChange.RESCORE)
    watch.see("judge", "v3")
    assert watch.target({"judge": {"v3"}}) == {"judge": "v3"}
    assert watch.see("judge", "v4") is True
    assert watch.see("judge", "v3") is False, "a late answer of the version before is no change back"
    assert watch.target({"judge": {"v3"}}) == {"judge": "v4"}
    assert watch.newest("judge") == "v4"


def test_answers_of_the_version_before_train_until_one_of_the_new_does() -> None:
    watch = VersionWatch(VersionChange.RESTART)
    watch.see("judge", "v3")
    watch.see("judge", "v4")
    assert watch.target({"judge": {"v3"}}) == {"judge": "v3"}
    watch.trained({"judge": "v3"})
    assert watch.target({"judge": {"v3", "v4"}}) == {"judge": "v4"}
    watch.trained({"judge": "v4"})
    assert watch.target({"judge": {"v3"}}) == {"judge": "v4"}, "the whole batch is of the version before"


def test_a_version_that_nobody_saw_is_older_than_all() -> None:
    """As that of an answer from the journal of an earlier start."""
    watch = VersionWatch(VersionChange.RESTART)
    watch.see("judge", "v4")
    watch.trained({"judge": "v4"})
    assert watch.target({"judge": {"v2"}}) == {"judge": "v4"}


def test_a_version_is_what_is_declared_or_the_code(tmp_path: Path) -> None:
    def reward(completion: str) -> float:
        return 1.0

    assert describe_reward("x", reward).version == digest_of_source(reward) != ""
    assert digest_of_source(functools.partial(reward)) == digest_of_source(reward)
    assert describe_reward("x", reward, provider="pack").spec.version is None


def test_a_model_with_other_weights_or_another_head_has_another_version(tmp_path: Path) -> None:
    assert digest_of_model("") == digest_of_model(tmp_path / "none") == ""
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"a" * 300_000)
    first = digest_of_model(tmp_path)
    weights.write_bytes(b"a" * 299_999 + b"b")
    second = digest_of_model(tmp_path)
    (tmp_path / "config.json").write_text('{"num_labels": 2}')
    assert len({first, second, digest_of_model(tmp_path)}) == 3
