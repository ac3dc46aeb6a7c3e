"""A run whose groups are all dropped ends with the reason; one in which some train goes on."""

from collections.abc import Sequence

import pytest
from scheduler_runs import score_one
from small_run import Seen, settings, train

from swift_rlx.errors import BackendRejected, RlxError
from swift_rlx.scheduler import GroupRejected
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript, Fault
from swift_rlx.trainers.drop_limit import DropLimit
from swift_rlx.types import Completion, DropReason, Prompt, Score

LIMIT = 6


def run(score: object, count: int = 40, fault: object = lambda request: None) -> Seen:
    drops = DropLimit(LIMIT, min_members=1)

    async def scored(prompt: Prompt, completions: Sequence[Completion]) -> Sequence[Score]:
        scores = await score(prompt, completions)
        drops.scored(scores)
        return scores

    def workers() -> list[FakeBackend]:
        return [FakeBackend(script=FakeScript(fault=fault))]

    config = settings(max_inflight=1)  # one after the other
    return train(config, workers, count=count, score=scored, on_end=drops.ended)


async def unscored(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    return [Score(None)] * len(completions)


def test_a_reward_that_scores_nothing_ends_the_run() -> None:
    with pytest.raises(
        RlxError,
        match=rf"^{LIMIT} groups in a row were dropped \(too few scored: {LIMIT}\).*unscored \(None\)",
    ):
        run(unscored)


def test_answers_that_are_always_refused_end_the_run_with_the_refusal() -> None:
    with pytest.raises(RlxError, match=r"too few answers: 6.*the last one: .*scripted fault"):
        run(score_one, fault=lambda request: Fault(BackendRejected))


def test_one_that_is_scored_begins_the_row_anew() -> None:
    def every(kept: int) -> object:
        async def some(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
            return [Score(1.0 if prompt.index % kept == 0 else None)] * len(completions)

        return some

    assert run(every(LIMIT)).indices == [0, 6, 12, 18, 24, 30, 36]
    with pytest.raises(RlxError, match="6 groups in a row"):
        run(every(LIMIT + 1))


def test_groups_without_spread_were_scored() -> None:
    async def flat(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
        if prompt.index % 20:
            raise GroupRejected(DropReason.NO_SPREAD, [Score(1.0)] * len(completions))
        return [Score(1.0)] * len(completions)

    assert run(flat).indices == [0, 20]
