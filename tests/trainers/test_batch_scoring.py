"""Rewards of a whole batch score beside the training: ahead, where the batch is known, and once for all its rows."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from group_scorers import ANSWERS, ROW, group_scorers, scored_group

from swift_rlx.errors import RewardError
from swift_rlx.rewards import register_reward
from swift_rlx.rewards.spec import MARK, RewardMark
from swift_rlx.trainers.batch_scoring import BatchScorer
from swift_rlx.trainers.group_scoring import GroupScorer
from swift_rlx.types import Prompt, TrainBatch, TrainGroup

LONG_S = 60.0
Make = Callable[..., GroupScorer]


@pytest.fixture
def scorer() -> Iterator[Make]:
    with group_scorers() as make:
        yield make


class Ranks:
    """The place of each row in its call, of the whole batch; notes its calls, and waits for `go` where told to."""

    def __init__(self) -> None:
        setattr(self, MARK, RewardMark(version="1", scope="batch"))
        self.calls: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.thread: threading.Thread | None = None

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        self.calls.append([text[-4:] for text in completions])
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.go.wait(LONG_S)
        return [float(row) for row in range(len(completions))]


def length(completion: str, **_: Any) -> float:
    return float(len(completion))


def groups_of(scorer: GroupScorer, *prompts: int) -> list[TrainGroup]:
    return [scored_group(scorer, prompt) for prompt in prompts]


def records(groups: Sequence[TrainGroup]) -> list[Any]:
    return [group.group for group in groups]


def parts(batch: TrainBatch) -> list[list[tuple[str, float | None, str]]]:
    return [
        [(part.name, part.value, part.version[:4]) for part in one.score.breakdown]
        for group in batch.groups
        for one in group.group.members
    ]


def test_a_batch_is_scored_in_one_call_by_another_thread_and_each_answer_keeps_its_part(scorer: Make) -> None:
    ranks = Ranks()
    one = scorer(ranks, length)
    batch = TrainBatch(0, tuple(groups_of(one, 3, 1)))
    assert [len(row) for row in parts(batch)] == [1] * 4, "groups are not scored by it"
    scored, versions = BatchScorer(one).scored(batch)
    assert [row[1][:2] for row in parts(scored)] == [("Ranks", value) for value in (2.0, 3.0, 0.0, 1.0)], (
        "in the order of admission, whatever that of the batch is"
    )
    assert [row[0][:2] for row in parts(scored)] == [("length", 26.0)] * 4
    assert versions == {"Ranks": "1"}
    assert len(ranks.calls) == 1
    assert ranks.thread is not threading.main_thread()


def test_what_is_expected_is_scored_ahead_and_not_again(scorer: Make) -> None:
    ranks = Ranks()
    one = scorer(ranks)
    ahead, groups = BatchScorer(one), groups_of(one, 0, 1)
    ranks.go.clear()
    ahead.expect(records(groups))
    assert ranks.begun.wait(LONG_S), "it has begun before anybody asks for the batch"
    ahead.expect(records(groups))
    ranks.go.set()
    scored, _ = ahead.scored(TrainBatch(0, tuple(reversed(groups))))
    assert [row[0][1] for row in parts(scored)] == [2.0, 3.0, 0.0, 1.0]
    assert len(ranks.calls) == 1


def test_another_batch_than_the_expected_one_is_scored_when_it_comes(scorer: Make) -> None:
    ranks = Ranks()
    one = scorer(ranks)
    ahead, groups = BatchScorer(one), groups_of(one, 0, 1, 2)
    ahead.expect(records(groups[:2]))
    scored, _ = ahead.scored(TrainBatch(0, (groups[0], groups[2])))
    assert [row[0][1] for row in parts(scored)] == [0.0, 1.0, 2.0, 3.0]
    assert len(ranks.calls) == 2


def test_one_scoring_at_a_time_and_the_newest_expectation_after_it(scorer: Make) -> None:
    ranks = Ranks()
    one = scorer(ranks)
    ahead, groups = BatchScorer(one), groups_of(one, 0, 1, 2, 3)
    ranks.go.clear()
    for second in (1, 2, 3):
        ahead.expect(records([groups[0], groups[second]]))
    assert ranks.begun.wait(LONG_S)
    assert len(ranks.calls) == 1
    ranks.go.set()
    scored, _ = ahead.scored(TrainBatch(0, (groups[0], groups[3])))
    assert len(parts(scored)) == 4
    assert 2 <= len(ranks.calls) <= 3, "the second expectation was never begun"


class Served:
    """A reward of whole batches whose version changes."""

    name = "judge"

    def __init__(self) -> None:
        self.version = "v3"
        setattr(self, MARK, RewardMark(scope="batch"))

    async def score(self, rows: Sequence[Any]) -> list[float | None]:
        return [float(self.version[1:])] * len(rows)


def test_a_batch_that_was_scored_ahead_by_a_version_before_is_scored_again(scorer: Make) -> None:
    from swift_rlx.rewards.version_watch import VersionChange, VersionWatch

    service = Served()
    one = scorer(service, versions=VersionWatch(VersionChange.RESCORE))
    assert one.of_batches() == [0]
    ahead, groups = BatchScorer(one), groups_of(one, 0, 1)
    ahead.expect(records(groups))
    assert ahead._begun is not None
    ahead._begun.scores.result(LONG_S)
    service.version = "v4"
    scored, versions = ahead.scored(TrainBatch(0, tuple(groups)))
    assert versions == {"judge": "v4"}
    assert {row[0] for row in parts(scored)} == {("judge", 4.0, "v4")}


def test_a_change_that_ends_the_run_ends_it_also_where_it_was_seen_in_another_batch(scorer: Make) -> None:
    service = Served()
    one = scorer(service)
    ahead, groups = BatchScorer(one), groups_of(one, 0, 1, 2)
    ahead.scored(TrainBatch(0, tuple(groups[:2])))
    service.version = "v4"
    ahead.expect(records(groups[1:]))
    assert ahead._begun is not None
    assert isinstance(ahead._begun.scores.exception(LONG_S), RewardError)
    with pytest.raises(RewardError, match="'judge' has the version 'v4' now, and scored with 'v3' before"):
        ahead.scored(TrainBatch(1, (groups[0], groups[2])))


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_failure_ends_the_run_where_the_batch_is_taken(is_ahead: bool, scorer: Make) -> None:
    def broken(completions: list[str], **_: Any) -> list[float]:
        raise KeyError("no verdict")

    setattr(broken, MARK, RewardMark(scope="batch"))
    one = scorer(broken)
    ahead, groups = BatchScorer(one), groups_of(one, 0, 1)
    if is_ahead:
        ahead.expect(records(groups))
    with pytest.raises(RewardError, match=r"raised KeyError: 'no verdict' in .* on a batch of 4$"):
        ahead.scored(TrainBatch(0, tuple(groups)))


def test_a_reward_of_batches_that_sets_an_alarm_is_left_to_the_main_thread(scorer: Make) -> None:
    import odd_rewards

    def limited(completions: list[str], **_: Any) -> list[float]:
        return [odd_rewards.limits_itself(text) for text in completions]

    setattr(limited, MARK, RewardMark(scope="batch"))
    one = scorer(limited, length)
    scored, versions = BatchScorer(one).scored(TrainBatch(0, tuple(groups_of(one, 0, 1))))
    assert (one.late, versions) == ({0}, {})
    assert [len(row) for row in parts(scored)] == [1] * 4


def test_nothing_is_done_without_such_a_reward(scorer: Make) -> None:
    one = scorer(length)
    batch = TrainBatch(0, tuple(groups_of(one, 0)))
    ahead = BatchScorer(one)
    ahead.expect(records(batch.groups))
    assert ahead.scored(batch) == (batch, {})


def test_scores_of_a_batch_cannot_be_kept() -> None:
    from swift_rlx.errors import ConfigError

    with pytest.raises(
        ConfigError, match="cache=True with scope 'batch': its scores depend on the other rows"
    ):
        register_reward("kept", scope="batch", cache=True)


def test_a_group_that_became_ready_is_told_after_its_scoring(scorer: Make) -> None:
    one, told = scorer(length), []

    async def main() -> None:
        one.on_group = lambda: told.append(1)
        await one(Prompt(0, np.zeros(1, np.int32), columns=ROW), ANSWERS)
        assert told == [], "who waits for the scores goes on first"
        await asyncio.sleep(0)
        assert told == [1]

    asyncio.run(main())
