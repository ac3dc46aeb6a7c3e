"""Workers that are all out: the run ends in time, with the cause, and not while one of them is coming back."""

from __future__ import annotations

import asyncio
import logging

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.clock import LoopClock
from swift_rlx.errors import BackendUnavailable, WorkerAbsent, WorkerDied
from swift_rlx.scheduler import IterableSource, PromptFeed, RolloutScheduler
from swift_rlx.scheduler.outage import Outage, Stopwatch
from swift_rlx.scheduler.requests import within
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual

LIMIT_S = 60.0


def now():
    return asyncio.get_running_loop().time()


def ends_after_s(scripts, message, **changes):
    """When a run over these workers ended with `BackendUnavailable`."""
    ended = []

    async def main():
        backends = [FakeBackend(f"worker-{at}", script) for at, script in enumerate(scripts)]
        config = settings(outage_limit_s=LIMIT_S, batch_groups=8, max_inflight=8, **changes)
        async with RolloutScheduler(config, backends, IterableSource(prompts(10_000)), score_one) as run:
            try:
                await run.next_batch()
            finally:
                ended.append(now())

    with pytest.raises(BackendUnavailable, match=message):
        run_virtual(main())
    return ended[0]


def always(fault):
    return lambda request: fault


@pytest.mark.parametrize("after_s", [(0.5, 0.5), (0.5, 0.7), (0.1, 20.0), (3.0, 1.0, 0.2)])
def test_workers_that_say_they_are_well_but_fail_every_request_end_the_run(after_s):
    scripts = [FakeScript(fault=always(Fault(BackendUnavailable, after_s=each))) for each in after_s]
    message = r"no rollout worker has answered for \d+ s; the last error: worker .* scripted fault"
    assert LIMIT_S <= ends_after_s(scripts, message, retries=1000) <= 2 * LIMIT_S + max(after_s)


def test_workers_on_which_every_request_hangs_end_the_run():
    scripts = [FakeScript(fault=always(Fault(None)))] * 2
    limit_s = 100.0
    message = "the last error: worker .* gave no answer to request .* within"
    ended_s = ends_after_s(scripts, message, retries=1000, request_timeout_s=limit_s)
    assert ended_s <= 3 * limit_s + LIMIT_S


def test_an_outage_ends_the_run_at_its_limit_and_not_at_the_next_failure():
    class Silent(FakeBackend):
        async def health(self):
            if self.requests:
                await asyncio.sleep(1e6)
            return await super().health()

    async def main():
        backend = Silent(script=FakeScript(fault=always(Fault(WorkerDied, after_s=2.0))))
        config = settings(outage_limit_s=LIMIT_S)
        async with RolloutScheduler(config, [backend], IterableSource(prompts(8)), score_one) as run:
            with pytest.raises(BackendUnavailable, match=r"answered for 60 s; .* to say how it is, in vain"):
                await run.next_batch()
            return now()

    assert run_virtual(main()) == pytest.approx(2.0 + LIMIT_S)


class Restarting(FakeBackend):
    """Dies at its requests up to the `deaths`-th, and then takes `start_s` to come back."""

    def __init__(self, start_s, deaths, latency=None, name="worker-0"):
        super().__init__(name, FakeScript(latency or ConstantLatency(1.0)))
        self.deaths = 0
        self._start_s = start_s
        self._most = deaths
        self._ready_s = None

    async def generate(self, request, *listeners):
        if self._ready_s is None and self.deaths < self._most:
            self.deaths += 1
            self._ready_s = now() + self._start_s
        if self._ready_s is not None:
            raise WorkerDied("out of memory")
        return await super().generate(request, *listeners)

    async def health(self):
        if self._ready_s is not None:
            if now() < self._ready_s:
                raise WorkerAbsent("loads the model")
            self._ready_s = None
        return await super().health()


def test_to_wait_for_a_worker_that_is_being_started_is_no_outage():
    backend = Restarting(start_s=5 * LIMIT_S, deaths=1)
    seen = train(settings(outage_limit_s=LIMIT_S), lambda: [backend], count=8)
    assert seen.stats.trained == 8
    assert seen.stats.failovers == 1
    assert seen.times[0] <= 5 * LIMIT_S + 5.0


def test_a_readmitted_worker_is_given_the_time_of_its_first_answer():
    backend = Restarting(start_s=0.0, deaths=1, latency=ConstantLatency(2 * LIMIT_S))
    seen = train(settings(outage_limit_s=LIMIT_S, max_staleness=200), lambda: [backend], count=2)
    assert seen.stats.trained == 2
    assert seen.stats.failures == {"WorkerDied": 2}


def test_a_worker_that_failed_and_is_back_with_nothing_to_do_is_no_outage():
    class Stumbling(FakeBackend):
        tries = 0

        async def publish(self, version, payload):
            self.tries += 1
            if self.tries == 1:
                raise BackendUnavailable("no room for the weights")
            await super().publish(version, payload)

    config = settings(outage_limit_s=LIMIT_S, max_staleness=0)
    for train_s in (0.1, 5 * LIMIT_S):  # in a long step no request is sent for longer than the limit
        seen = train(config, lambda: [Stumbling()], count=8, train_s=train_s)
        assert (seen.stats.trained, seen.stats.failovers) == (8, 1)

    async def late_prompts():
        feed, backend = PromptFeed(prompts(2)), Stumbling()
        async with RolloutScheduler(config, [backend], feed, score_one) as run:
            await run.next_batch()
            await run.published(run.publish(None))
            await asyncio.sleep(5 * LIMIT_S)
            feed.put(prompts(2, start=2))
            return len((await run.next_batch()).groups)

    assert run_virtual(late_prompts()) == 2


def test_a_worker_is_taken_out_once_however_often_it_is_asked_in_vain():
    out_until = 40.0

    def gone():
        return WorkerDied("gone") if 5.0 <= now() < out_until else None

    script = FakeScript(
        fault=lambda request: Fault(WorkerDied) if 5.0 <= now() < out_until else None, health_fault=gone
    )
    seen = train(
        settings(max_inflight=2),
        lambda: [FakeBackend("worker-0", script), FakeBackend("worker-1")],
        count=200,
    )
    assert seen.stats.trained == 200
    assert seen.stats.failovers == 1


@pytest.mark.parametrize("back_s", [4.0, 13.0, 45.0])
def test_a_lone_server_that_comes_back_within_the_limit_is_used_again_within_seconds(back_s):
    """It is asked for the first time 3 s after it is out, and has to be so before the run ends of its absence."""

    def gone():
        return BackendUnavailable("connection refused") if 2.0 <= now() < 2.0 + back_s else None

    used = []

    class Server(FakeBackend):
        async def generate(self, request, *listeners):
            if gone() is None:
                used.append(now())
            return await super().generate(request, *listeners)

    script = FakeScript(
        fault=lambda request: None if gone() is None else Fault(BackendUnavailable), health_fault=gone
    )
    seen = train(settings(outage_limit_s=50.0), lambda: [Server("worker-0", script)], count=40, train_s=1.0)
    assert seen.stats.trained == 40
    after = [when for when in used if when >= 2.0 + back_s]
    assert min(after) <= 2.0 + back_s + 5.5


def test_what_happens_to_workers_is_told_and_a_kind_of_failure_once(caplog):
    with caplog.at_level(logging.WARNING, "swift_rlx"):
        seen = train(
            settings(max_inflight=2, max_staleness=20),
            lambda: [Restarting(start_s=3.0, deaths=2), FakeBackend("worker-1")],
            count=80,
        )
    told = [record.getMessage() for record in caplog.records]
    assert seen.stats.failures["WorkerDied"] >= 2
    assert told.count("worker 'worker-0' gets no more requests until it is well again: out of memory") == 2
    assert sum("worker 'worker-0' is back after" in line for line in told) == 2
    assert sum("a request failed" in line and "WorkerDied: out of memory" in line for line in told) == 1


def test_an_outage_is_counted_without_its_pauses():
    over = []

    async def main():
        outage = Outage(LoopClock(), 10.0, lambda: over.append(now()))
        outage.run()
        await asyncio.sleep(4.0)
        outage.run()  # it runs already
        outage.pause()
        outage.pause()
        await asyncio.sleep(100.0)
        assert (outage.seconds, outage.is_over) == (4.0, False)
        outage.run()
        await asyncio.sleep(20.0)
        assert (over, outage.is_over, outage.seconds) == ([110.0], True, 24.0)
        outage.end()
        assert (outage.seconds, outage.is_over) == (0.0, False)
        outage.run()
        await asyncio.sleep(5.0)
        outage.end()
        await asyncio.sleep(50.0)

    run_virtual(main())
    assert over == [110.0]


def test_a_stopwatch_counts_the_seconds_in_which_it_ran():
    async def main():
        watch = Stopwatch(LoopClock())
        await asyncio.sleep(3.0)
        watch.pause()
        watch.run()
        await asyncio.sleep(2.0)
        watch.run()  # it runs already
        await asyncio.sleep(2.0)
        assert watch.seconds == 4.0
        watch.pause()
        await asyncio.sleep(5.0)
        return watch.seconds

    assert run_virtual(main()) == 4.0


def test_the_time_in_which_every_worker_is_out_is_counted():
    def gone(since_s, until_s):
        def fault(*request):
            return BackendUnavailable("gone") if since_s <= now() < until_s else None

        return FakeScript(
            ConstantLatency(1.0),
            fault=lambda request: fault() and Fault(BackendUnavailable),
            health_fault=fault,
        )

    scripts = [gone(10.0, 30.0), gone(20.0, 40.0)]
    seen = train(
        settings(outage_limit_s=50.0),
        lambda: [FakeBackend(f"worker-{at}", script) for at, script in enumerate(scripts)],
        count=200,
        train_s=0.5,
    )
    assert seen.stats.trained == 200
    assert 5.0 <= seen.stats.away_s <= 16.0, "both were away for 10 s, and one is asked every 5 s"


def test_the_counters_of_a_run_that_ended_in_an_outage_are_read_when_its_loop_has_gone():
    gone = FakeScript(
        fault=lambda request: Fault(BackendUnavailable),
        health_fault=lambda: BackendUnavailable("gone") if now() > 0 else None,
    )
    runs = []

    async def main():
        backends, source = [FakeBackend(script=gone)], IterableSource(prompts(20))
        runs.append(RolloutScheduler(settings(outage_limit_s=20.0), backends, source, score_one))
        async with runs[0]:
            await runs[0].next_batch()

    with pytest.raises(BackendUnavailable):
        run_virtual(main())
    assert runs[0].statistics().away_s > 10.0


def test_who_is_stopped_in_the_moment_in_which_a_worker_answers_is_stopped():
    async def main():
        async def answer():
            asyncio.get_running_loop().call_soon(asking.cancel)  # runs before the answer is taken
            return "well"

        asking = asyncio.ensure_future(within(10.0, answer(), "the worker"))
        with pytest.raises(asyncio.CancelledError):
            await asking

    run_virtual(main())
