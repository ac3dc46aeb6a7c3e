"""Groups that end without training: told, counted, and the end of a run in which there is nothing else."""

from __future__ import annotations

import logging

import pytest
from small_run import Seen, settings, train

from swift_rlx.errors import BackendError, BackendRejected, BackendTimeout, RewardError
from swift_rlx.scheduler import GroupRejected
from swift_rlx.scheduler.drops import LEAST_IN_A_ROW
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.types import DropReason, Fate, RewardPart, Score


def refusing(first):
    """A worker that refuses every prompt from this one on."""

    def fault(request):
        return Fault(BackendRejected, after_s=0.1) if request.prompt.index >= first else None

    return lambda: [FakeBackend(script=FakeScript(fault=fault))]


def unscored(prompt, completions):
    parts = (RewardPart("accuracy", None), RewardPart("length", 1.0))
    return [Score(None, parts)] * len(completions)


def end_of(error, message, config, backends=None, **options):
    """The ends of a run's groups; it has to end with this error, and would have prompts for ever."""
    seen = Seen()
    with pytest.raises(error, match=message):
        train(config, backends, count=5000, seen=seen, **options)
    return [end for end in seen.ends if end.drop_reason is not None]


@pytest.mark.parametrize("first", [0, 6])
def test_a_fault_that_refuses_every_prompt_ends_the_run_with_its_words(first):
    message = (
        r"1\d groups in a row ended without training; the last one, prompt \(0, \d+\) was dropped for too few answers:"
        r" 2 of 2 answers failed, the first because worker 'worker-0': scripted fault"
    )
    dropped = end_of(BackendError, message, settings(group_size=2, min_members=2), refusing(first))
    assert LEAST_IN_A_ROW <= len(dropped) <= LEAST_IN_A_ROW + 6  # what else was in flight


def test_rewards_that_are_none_for_every_answer_end_the_run_and_are_named():
    async def score(prompt, completions):
        return unscored(prompt, completions)

    message = r"0 of 3 answers have a reward; without a value: accuracy \(3\)"
    dropped = end_of(RewardError, message, settings(group_size=3), score=score)
    assert {end.drop_reason for end in dropped} == {DropReason.TOO_FEW_SCORED}


def test_as_many_drops_as_there_are_places_are_allowed_where_these_are_more():
    config = settings(batch_groups=10, max_inflight=200)
    dropped = end_of(BackendError, "30 groups in a row", config, refusing(0))
    assert len(dropped) >= config.places == 30


def test_drops_with_a_group_that_trains_between_them_end_nothing():
    def fault(request):
        return Fault(BackendRejected) if request.prompt.index % 8 else None

    seen = train(settings(), lambda: [FakeBackend(script=FakeScript(fault=fault))], count=160)
    assert sorted(seen.indices) == [*range(0, 160, 8)]
    assert seen.stats.dropped == {DropReason.TOO_FEW_ANSWERS: 140}


def test_refusals_that_are_faster_than_the_answers_between_them_end_nothing():
    def fault(request):  # two thirds of the prompts are too long, say
        return Fault(BackendRejected) if request.prompt.index % 3 else None

    script = FakeScript(ConstantLatency(100.0), fault=fault)
    seen = train(
        settings(batch_groups=16, max_staleness=200), lambda: [FakeBackend(script=script)], count=400
    )
    assert sorted(seen.indices) == [*range(0, 400, 3)]


def test_groups_that_the_scorer_turns_away_end_nothing_and_are_not_lost_to_failures():
    async def score(prompt, completions):
        scores = [Score(1.0)] * len(completions)
        if prompt.index < 50:
            raise GroupRejected(DropReason.NO_SPREAD, scores)
        return scores

    seen = train(settings(), score=score, count=54)
    assert sorted(seen.indices) == [50, 51, 52, 53]
    assert seen.stats.dropped == {DropReason.NO_SPREAD: 50}
    assert (seen.stats.tokens[Fate.REJECTED], seen.stats.tokens[Fate.FAILED]) == (500, 0)


def test_the_first_drop_for_a_reason_is_told(caplog):
    async def score(prompt, completions):
        return unscored(prompt, completions) if prompt.index % 4 == 1 else [Score(1.0)]

    def fault(request):
        return Fault(BackendRejected) if request.prompt.index % 4 == 2 else None

    with caplog.at_level(logging.WARNING, "swift_rlx"):
        train(settings(), lambda: [FakeBackend(script=FakeScript(fault=fault))], score=score, count=40)
    told = [record.getMessage() for record in caplog.records if "was dropped for" in record.getMessage()]
    assert sorted(line.split(": ")[0].split("dropped for ")[1] for line in told) == [
        "too few answers",
        "too few scored",
    ]


def test_a_first_batch_that_does_not_come_says_what_failed_last():
    def fault(request):
        return Fault(BackendRejected) if request.prompt.index == 0 else None

    message = (
        r"within 5 s: .* failed attempts: \{'BackendRejected': 1\}; worker 'worker-0': scripted fault of 0/0/0#1\.1;"
        r" prompt \(0, 0\) was dropped for too few answers: 1 of 1 answers failed"
    )
    script = FakeScript(ConstantLatency(60.0), fault=fault)
    with pytest.raises(BackendTimeout, match=message):
        train(settings(warm_up_limit_s=5.0), lambda: [FakeBackend(script=script)])
