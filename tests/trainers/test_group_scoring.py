"""Groups are scored beside the training, and a reward that cannot be is left to the main thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from group_scorers import group_scorers, score, scored_beside, scored_group

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.rewards import RewardCombiner
from swift_rlx.rewards.version_watch import VersionChange, VersionWatch
from swift_rlx.trainers import group_scoring
from swift_rlx.trainers.group_scoring import GroupScorer
from swift_rlx.trainers.spread_filter import SpreadFilter
from swift_rlx.types import Score, TrainBatch


@pytest.fixture
def scorer() -> Iterator[Callable[..., GroupScorer]]:
    with group_scorers() as make:
        yield make


def values(scores: list[Score]) -> list[list[float | None]]:
    return [[part.value for part in one.breakdown] for one in scores]


def failures(scorer: GroupScorer) -> dict[str, int]:
    return {name: counters.failed for name, counters in scorer.take_counters().items()}


def verified(completions: list[str], solution: list[str], **_: Any) -> list[float]:
    """As ms-swift's `accuracy`: math-verify limits its time by an alarm."""
    from math_verify import parse, verify

    return [
        float(verify(parse(right), parse(text))) for text, right in zip(completions, solution, strict=True)
    ]


def length(completion: str, **_: Any) -> float:
    return float(len(completion))


def broken(completion: str, **_: Any) -> float:
    raise RuntimeError("no verdict today")


@pytest.mark.parametrize("policy", ["raise", "none", "value:0"])
def test_a_reward_that_needs_an_alarm_is_late_from_its_first_call_on(
    policy: str, scorer: Callable[..., GroupScorer]
) -> None:
    both = scorer(verified, length, policy=policy)
    assert both.late == set()
    scores = score(both)
    assert both.late == {0}
    assert values(scores) == [[26.0], [26.0]]
    assert [one.reward for one in scores] == [0.0, 0.0], "the reward comes in later"
    assert failures(both) == {"length": 0}, "it did not fail"
    score(both)
    assert both.late == {0}


def test_dynamic_sampling_with_a_reward_that_turns_out_late_ends_in_one_sentence(
    scorer: Callable[..., GroupScorer],
) -> None:
    one = scorer(verified, spread=SpreadFilter(RewardCombiner(["verified"], torch.ones(1)), limit=4))
    with pytest.raises(
        ConfigError, match=r"^--dynamic_sample true .* with verified, .* use --async_rollout false$"
    ):
        score(one)


def test_a_failing_reward_is_an_error_or_counted(scorer: Callable[..., GroupScorer]) -> None:
    with pytest.raises(RewardError, match="no verdict today"):
        score(scorer(broken))
    counting = scorer(broken, length, policy="none")
    assert values(score(counting)) == [[None, 26.0], [None, 26.0]]
    score(counting)
    assert failures(counting) == {"broken": 4, "length": 0}
    assert failures(counting) == {}


def test_rewards_see_ids_that_tell_answers_apart(scorer: Callable[..., GroupScorer]) -> None:
    seen: list[tuple[str, str]] = []

    def noting(completion: str, prompt_id: str, request_id: str, **_: Any) -> float:
        seen.append((prompt_id, request_id))
        return 1.0

    one = scorer(noting)
    score(one, prompt=3)
    score(one, prompt=3)  # generated again
    assert {prompt_id for prompt_id, _ in seen} == {"prompt_0_3"}
    assert len({request_id for _, request_id in seen}) == 4


def test_a_reward_that_groups_wait_for_is_named_once_in_a_while(
    scorer: Callable[..., GroupScorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            told_twice.set()

    async def slow(completion: str, **_: Any) -> float:
        while not told_twice.is_set():  # noqa: ASYNC110 (it is set in another thread)
            await asyncio.sleep(0.01)
        return 1.0

    async def main() -> None:
        one = scorer(slow)
        await asyncio.gather(*(scored_beside(one, prompt) for prompt in range(8)))

    told_twice = threading.Event()
    monkeypatch.setattr(group_scoring, "SAY_EVERY_S", 0.05)
    monkeypatch.setattr(group_scoring.logger, "warning", say)
    asyncio.run(main())
    assert len(said) < 8, "once for all the groups"
    assert all("for the reward slow" in line for line in said)


# --- versions -----------------------------------------------------------------------------------------------------


class Served:
    """A reward service."""

    name = "judge"

    def __init__(self) -> None:
        self.version = "v3"

    async def score(self, rows: Sequence[Any]) -> list[float | None]:
        return [float(self.version[1:])] * len(rows)


def rewards_of(batch: TrainBatch) -> list[list[float | None]]:
    return [
        [part.value for one in group.group.members for part in one.score.breakdown] for group in batch.groups
    ]


def test_each_score_keeps_the_version_that_made_it(scorer: Callable[..., GroupScorer]) -> None:
    def own(completion: str) -> float:
        return 1.0

    parts = score(scorer(Served(), own))[0].breakdown
    assert [part.version[:5] for part in parts] == ["v3", "code:"]


def test_a_changed_version_ends_the_run(scorer: Callable[..., GroupScorer]) -> None:
    service = Served()
    one = scorer(service)
    score(one)
    service.version = "v4"
    with pytest.raises(RewardError, match="'judge' has the version 'v4' now"):
        score(one)


def test_waiting_answers_are_scored_again_by_the_new_version(scorer: Callable[..., GroupScorer]) -> None:
    service = Served()
    one = scorer(service, versions=VersionWatch(VersionChange.RESCORE))
    old = scored_group(one, 0)
    service.version = "v4"
    batch = TrainBatch(0, (old, scored_group(one, 1)))
    assert rewards_of(batch) == [[3.0, 3.0], [4.0, 4.0]]
    settled = one.of_one_version(batch)
    assert rewards_of(settled.batch) == [[4.0, 4.0], [4.0, 4.0]]
    assert (settled.versions, settled.left_out) == ({"judge": "v4"}, frozenset())


def test_answers_of_the_version_before_are_left_out_beside_new_ones(
    scorer: Callable[..., GroupScorer],
) -> None:
    service = Served()
    one = scorer(service, versions=VersionWatch(VersionChange.RESTART))
    first, second = scored_group(one, 0), scored_group(one, 1)
    service.version = "v4"
    third = scored_group(one, 2)
    alone = one.of_one_version(TrainBatch(0, (first,)))
    assert (alone.versions, alone.left_out) == ({"judge": "v3"}, frozenset())
    mixed = one.of_one_version(TrainBatch(1, (second, third)))
    assert (mixed.versions, mixed.left_out) == ({"judge": "v4"}, {(0, 1)})
    late = one.of_one_version(TrainBatch(2, (first,)))
    assert late.left_out == {(0, 0)}, "never back to the version before"
