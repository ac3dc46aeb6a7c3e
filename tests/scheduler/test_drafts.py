"""Answers that a second worker goes on with: what it may go on behind, and what becomes of the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from small_run import settings, train

from swift_rlx.backends import WeightUpdate
from swift_rlx.clock import LoopClock
from swift_rlx.errors import BackendRejected, BackendUnavailable, WorkerDied
from swift_rlx.scheduler.drafts import usable_tokens
from swift_rlx.scheduler.routing import Worker
from swift_rlx.scheduler.time_limits import Pulse
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.types import Fate, PolicyVersion

KEEP, PIN, DRAIN, ABORT = WeightUpdate


@pytest.mark.parametrize(
    ("steps", "at", "mode", "usable"),
    [
        ([2, 2, 3], 3, KEEP, 3),
        ([2, 2, 3], 5, KEEP, 3),
        ([2, 2, 3], 2, KEEP, 2),  # the last token is of weights that this worker does not have yet
        ([2, 2, 3], 1, KEEP, 0),
        ([3, 3, 3], 3, PIN, 3),
        ([3, 3, 3], 4, PIN, 0),
        ([3, 3, 3], 4, DRAIN, 0),
        ([3, 3, 3], 3, ABORT, 3),
        ([4, 4], 3, DRAIN, 0),
    ],
)
def test_how_far_the_weights_of_a_worker_allow_it_to_go_on(steps, at, mode, usable):
    worker = Worker(FakeBackend(), 1, 0.0, PolicyVersion(0, at))
    assert usable_tokens(np.array(steps, np.int32), worker, mode) == usable


def test_a_pinned_answer_does_not_begin_while_its_worker_changes_its_weights():
    worker = Worker(FakeBackend(), 1, 0.0, PolicyVersion(0, 3), pulse=Pulse(LoopClock()))
    worker.pulse._clock = LoopClock
    steps = np.array([3, 3], np.int32)
    worker.pulse._publishes = 1
    assert usable_tokens(steps, worker, PIN) == 0
    assert usable_tokens(steps, worker, KEEP) == 2


class Asked(FakeBackend):
    """Remembers what it was given to go on behind."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prefixes = []

    async def generate(self, request, *watch):
        if request.prefix is not None:
            self.prefixes.append(request.prefix.num_tokens)
        return await super().generate(request, *watch)


def interrupted(error=WorkerDied, mode=KEEP, second=Asked, after_s=6.05, **other):
    """One prompt of 100 tokens at 10 a second; the first attempt fails. The run and the worker that went on."""
    workers = []

    def fault(request):
        return Fault(error, after_s=after_s) if request.prefix is None else None

    def backends():
        script = FakeScript(ConstantLatency(10.0), fault=fault, tell_s=0.3)
        workers.append(
            second("worker-1", FakeScript(ConstantLatency(10.0), fault=fault, tell_s=0.3), mode=mode)
        )
        return [FakeBackend("worker-0", script, mode=mode), workers[0]]

    seen = train(settings(batch_groups=1, weight_update=mode, **other), backends, count=1)
    [answer] = [one.group.members[0] for batch in seen.batches for one in batch.groups]
    return seen, answer, workers[0]


@pytest.mark.parametrize("mode", [KEEP, PIN, DRAIN])
def test_the_next_worker_goes_on_behind_what_was_told_and_the_answer_is_whole(mode):
    seen, answer, worker = interrupted(mode=mode)
    assert worker.prefixes == [60]  # of 60.5, told every 0.3 s
    completion = answer.completion
    assert completion.token_ids.tolist() == list(range(100))
    assert (completion.submit_s, completion.start_s, completion.first_token_s) == pytest.approx(
        (0.0, 0.0, 0.1)
    )
    assert completion.worker == "worker-1"
    assert completion.finish_s == pytest.approx(6.05 + 4.0, abs=0.2)
    assert answer.attempts == 2
    assert seen.stats.tokens[Fate.TRAINED] == seen.stats.generated_tokens == 100
    assert seen.stats.repeated_tokens == 0


def test_what_was_not_told_before_a_failure_is_made_again_and_counted():
    seen, _, worker = interrupted(after_s=6.25)  # 62 tokens, 60 of them told
    assert worker.prefixes == [60]
    assert seen.stats.repeated_tokens == 2
    assert seen.stats.tokens[Fate.FAILED] == 2
    assert seen.stats.generated_tokens == 102


def test_a_worker_that_begins_anew_makes_all_of_it_again_and_that_is_counted():
    class Forgetful(Asked):
        def _begin(self, request):
            answer = super()._begin(request)
            answer.kept = answer.told = 0
            return answer

    seen, answer, worker = interrupted(second=Forgetful)
    assert worker.prefixes == [60]
    assert answer.completion.token_ids.tolist() == list(range(100))
    assert answer.completion.submit_s > 6.0
    assert seen.stats.repeated_tokens == seen.stats.tokens[Fate.FAILED] == 60
    assert seen.stats.generated_tokens == 160


def test_an_answer_is_given_up_with_its_tokens_where_no_retry_helps():
    def fault(request):
        return Fault(BackendUnavailable if request.attempt == 1 else BackendRejected, after_s=3.05)

    def backends():
        script = FakeScript(ConstantLatency(10.0), fault=fault, tell_s=0.3)
        return [FakeBackend(name, script) for name in ("worker-0", "worker-1")]

    seen = train(settings(batch_groups=1), backends, count=1)
    assert not seen.batches
    assert seen.stats.tokens[Fate.FAILED] == seen.stats.generated_tokens == 60  # 30, and 30 behind them
    assert seen.stats.repeated_tokens == 0


def test_tokens_of_older_weights_go_on_under_newer_ones_and_keep_their_versions():
    def fault(request):
        is_first = request.prompt.index == 0 and request.prefix is None
        return Fault(WorkerDied, after_s=6.05) if is_first else None

    def latency(request):
        return 10.0 if request.prompt.index == 0 else 1.0

    def backends():
        script = FakeScript(latency, fault=fault, tell_s=0.3)
        return [FakeBackend(name, script) for name in ("worker-0", "worker-1")]

    seen = train(settings(batch_groups=1, max_staleness=50), backends, count=8, train_s=1.5)
    [answer] = [
        one.group.members[0].completion
        for batch in seen.batches
        for one in batch.groups
        if one.group.prompt.index == 0
    ]
    steps = answer.policy_steps
    assert answer.num_tokens == 100
    assert (np.diff(steps) >= 0).all()
    assert steps[0] == 0
    assert steps[-1] > steps[59] > 0
