"""The scheduler as its user sees it, in virtual time: order of events, weights, beginning and end."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.backends import WeightUpdate
from swift_rlx.errors import BackendTimeout, ConfigError, SchedulingError, StalenessError
from swift_rlx.scheduler import GroupOutcome, IterableSource, PromptFeed, RolloutScheduler
from swift_rlx.scheduler.routing import Router
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Fate, PolicyVersion, Score


def worker(latency=None, mode=WeightUpdate.KEEP, name="worker-0", **script):
    return FakeBackend(name, FakeScript(latency or ConstantLatency(1.0), **script), mode=mode)


async def slow_score(prompt, completions):
    await asyncio.sleep(1.0)
    return [Score(1.0)] * len(completions)


def test_step_t_trains_while_t_plus_1_is_scored_and_t_plus_2_generated():
    seen = train(settings(), score=slow_score, count=20)
    gaps = np.diff(seen.times)
    assert gaps.tolist() == pytest.approx([1.0] * 9)  # each of the three stages takes 1 s


def test_at_staleness_0_the_stages_follow_each_other_and_every_token_is_of_the_newest_weights():
    seen = train(settings(max_staleness=0), score=slow_score, count=8)
    assert np.diff(seen.times).tolist() == pytest.approx([3.0] * 3)
    assert set(seen.stats.staleness) == {0}


def test_a_slow_scorer_does_not_hold_up_generation():
    started = []

    async def stuck(prompt, completions):
        started.append(prompt.index)
        await asyncio.sleep(100.0)
        return [Score(1.0)]

    seen = train(settings(), score=stuck, count=6)
    assert sorted(started) == [0, 1, 2, 3, 4, 5]
    assert seen.times[0] == pytest.approx(101.0)


def test_a_prompt_is_admitted_only_after_the_weights_are_live():
    sent = []

    class Noting(FakeBackend):
        async def generate(self, request, *watch):
            sent.append((request.prompt.index, asyncio.get_running_loop().time()))
            return await super().generate(request, *watch)

    def backends():
        return [Noting(script=FakeScript(ConstantLatency(1.0), publish_s=5.0))]

    train(settings(max_staleness=0), backends, count=4)
    # Generation 1 s, training 1 s, publishing 5 s.
    assert sent == [(0, 0.0), (1, 0.0), (2, pytest.approx(7.0)), (3, pytest.approx(7.0))]


def test_the_pace_of_a_worker_is_that_of_the_tokens_that_it_made(monkeypatch):
    measured = []
    monkeypatch.setattr(
        Router, "measured", lambda self, worker, mark, tokens, seconds: measured.append(tokens)
    )

    def every_other(request, count):
        return np.arange(count) % 2 == 0

    train(settings(), lambda: [worker(sampled=every_other)], count=4)
    assert measured == [5] * 4, "of 10 tokens each, the others from an environment"


def test_the_rest_of_the_prompts_makes_a_smaller_last_batch():
    seen = train(settings(), count=5)
    assert [len(batch.groups) for batch in seen.batches] == [2, 2, 1]
    assert sorted(seen.indices) == [0, 1, 2, 3, 4]


def test_without_prompts_there_is_no_batch():
    assert train(settings(), count=0).batches == []


def test_a_run_without_a_batch_left_admits_nothing():
    seen = train(settings(max_batches=0))
    assert (seen.batches, seen.stats.admitted) == ([], 0)


def test_groups_are_numbered_in_the_order_of_the_source():
    seen = train(settings(), count=8)
    orders = {one.group.order: one.group.prompt.index for batch in seen.batches for one in batch.groups}
    assert orders == {number: number for number in range(8)}


def test_prompts_that_are_fed_later_wake_generation():
    async def main():
        feed = PromptFeed(prompts(1))
        async with RolloutScheduler(settings(), [worker()], feed, score_one) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(10.0)
            assert not waiting.done()
            feed.put(prompts(1, start=1))
            feed.close()
            batch = await waiting
            scheduler.publish(None)
            return len(batch.groups), await scheduler.next_batch()

    assert run_virtual(main()) == (2, None)


def test_published_returns_when_every_worker_has_the_weights():
    async def main():
        slow = worker(publish_s=3.0)
        workers = [slow, worker(name="worker-1")]
        async with RolloutScheduler(settings(), workers, IterableSource(prompts(4)), score_one) as scheduler:
            version = scheduler.publish(None)
            await scheduler.published(version)
            return asyncio.get_running_loop().time(), [one.published for one in workers]

    now, published = run_virtual(main())
    assert now == pytest.approx(3.0)
    assert published == [[PolicyVersion(0, 1)]] * 2


def test_weights_that_are_superseded_before_they_are_sent_are_left_out():
    async def main():
        one = worker(publish_s=3.0)
        async with RolloutScheduler(settings(), [one], IterableSource([]), score_one) as scheduler:
            for _ in range(3):
                version = scheduler.publish(None)
                await asyncio.sleep(0.5)
            await scheduler.published(version)
            return one.published

    assert run_virtual(main()) == [PolicyVersion(0, 1), PolicyVersion(0, 3)]


def _publish_into_a_long_answer(mode):
    """Publish at 2 s into an answer of 10 s; returns the run, and the times of requests and weights."""
    events = []

    class Noting(FakeBackend):
        async def generate(self, request, *watch):
            events.append(("request", asyncio.get_running_loop().time()))
            return await super().generate(request, *watch)

        async def publish(self, version, payload):
            await super().publish(version, payload)
            events.append(("weights", asyncio.get_running_loop().time()))

    async def main():
        config = settings(batch_groups=1, max_staleness=4, weight_update=mode)
        backend = Noting(script=FakeScript(ConstantLatency(10.0), tokens_per_s=1.0), mode=mode)
        source = IterableSource(prompts(1))
        async with RolloutScheduler(config, [backend], source, score_one) as scheduler:
            for when in (2.0, 3.0):
                await asyncio.sleep(when - asyncio.get_running_loop().time())
                scheduler.publish(None)
            batch = await scheduler.next_batch()
            await scheduler.published(scheduler.version)
            return batch.groups[0].group.members[0].completion.policy_steps.tolist(), scheduler

    steps, scheduler = run_virtual(main())
    return steps, events, scheduler.statistics()


def test_keep_goes_on_under_the_new_weights():
    steps, events, _ = _publish_into_a_long_answer(WeightUpdate.KEEP)
    assert steps == [0, 0, 1, 2, 2, 2, 2, 2, 2, 2]
    assert events == [("request", 0.0), ("weights", 2.0), ("weights", 3.0)]


def test_pin_finishes_on_the_old_weights():
    steps, events, _ = _publish_into_a_long_answer(WeightUpdate.PIN)
    assert steps == [0] * 10
    assert events == [("request", 0.0), ("weights", 2.0), ("weights", 3.0)]


def test_drain_waits_for_the_answer():
    steps, events, _ = _publish_into_a_long_answer(WeightUpdate.DRAIN)
    assert steps == [0] * 10
    assert events == [("request", 0.0), ("weights", 10.0), ("weights", 10.0)]


def test_abort_cuts_an_answer_once_and_then_waits_for_it():
    steps, events, stats = _publish_into_a_long_answer(WeightUpdate.ABORT)
    assert steps == [1] * 10
    assert events == [("request", 0.0), ("weights", 2.0), ("request", 2.0), ("weights", 12.0)]
    assert stats.tokens[Fate.CUT] == 2


def test_an_early_end_carries_over_what_was_not_trained():
    seen = train(settings(), count=20, steps=2)
    stats = seen.stats
    assert (stats.trained, stats.carried, stats.open, stats.admitted) == (4, 4, 0, 8)
    assert sorted(end.group.prompt.index for end in seen.ends) == list(range(8))
    trained = [end.group.prompt.index for end in seen.ends if end.outcome is GroupOutcome.TRAINED]
    assert trained == seen.indices


def test_the_end_counts_the_tokens_of_answers_in_flight_as_cut():
    async def main():
        backend = worker(ConstantLatency(10.0), tokens_per_s=1.0)
        async with RolloutScheduler(
            settings(), [backend], IterableSource(prompts(9)), score_one
        ) as scheduler:
            await asyncio.sleep(4.0)
            assert [one.index for one in scheduler.unfinished_prompts()] == list(range(6))
        return scheduler.statistics(), backend

    stats, backend = run_virtual(main())
    assert stats.tokens[Fate.CUT] == stats.generated_tokens == backend.generated_tokens == 24
    assert backend.is_closed


def test_a_resumed_run_goes_on_with_its_versions():
    begin = PolicyVersion(2, 40)
    seen = train(settings(), lambda: [FakeBackend(version=begin)], count=4, version=begin)
    assert [batch.step for batch in seen.batches] == [40, 41]
    assert seen.scheduler.version == PolicyVersion(2, 42)
    completion = seen.batches[0].groups[0].group.members[0].completion
    assert (completion.incarnation, set(completion.policy_steps.tolist())) == (2, {40})


def test_a_worker_with_other_weights_at_the_start_is_refused():
    with pytest.raises(StalenessError, match=r"'worker-0' serves weights 0\.0, but the run starts at 0\.40"):
        train(settings(), version=PolicyVersion(0, 40))


def test_a_first_batch_that_does_not_come_says_what_it_waits_for():
    message = (
        r"within 5 s: of 2 groups 0 are ready and 0 wait for their score; 4 requests are in flight and 2"
    )
    with pytest.raises(BackendTimeout, match=message):
        train(settings(warm_up_limit_s=5.0, max_inflight=4), lambda: [worker(ConstantLatency(60.0))])


def test_workers_need_names_of_their_own():
    with pytest.raises(ConfigError, match="at least one, each with its own name"):
        train(settings(), lambda: [worker(), worker()])
    with pytest.raises(ConfigError, match="at least one"):
        train(settings(), lambda: [])


def test_a_closed_scheduler_gives_no_batch_and_no_step_of_zero_is_published():
    async def main():
        scheduler = RolloutScheduler(settings(), [worker()], IterableSource([]), score_one)
        async with scheduler:
            with pytest.raises(SchedulingError, match="after 0 optimizer steps"):
                scheduler.publish(None, steps=0)
        with pytest.raises(SchedulingError, match="the scheduler is closed"):
            await scheduler.next_batch()

    run_virtual(main())


def test_closing_wakes_a_trainer_that_waits():
    async def main():
        scheduler = RolloutScheduler(settings(), [worker(ConstantLatency(60.0))], PromptFeed(), score_one)
        async with scheduler:
            waits = [
                asyncio.ensure_future(one)
                for one in (scheduler.next_batch(), scheduler.published(PolicyVersion(0, 1)))
            ]
            await asyncio.sleep(1.0)
            await scheduler.close()
            return await asyncio.gather(*waits, return_exceptions=True)

    errors = run_virtual(main())
    assert [str(error) for error in errors] == ["the scheduler is closed"] * 2


def test_what_is_over_age_as_a_whole_is_made_again_once_and_then_waited_for():
    async def score(prompt, completions):
        await asyncio.sleep(4.0 if prompt.index == 0 else 0.0)  # the bound allows 2 steps of 1 s
        return [Score(1.0)] * len(completions)

    seen = train(settings(), score=score, count=20)
    assert seen.stats.regenerated == 1
    assert seen.stats.trained == 20
    rounds = {one.group.prompt.index: one.group.rounds for batch in seen.batches for one in batch.groups}
    assert rounds[0] == 2
    assert max(seen.stats.staleness) <= 2
