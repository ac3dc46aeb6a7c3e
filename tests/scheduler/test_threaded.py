"""The scheduler in its thread, in real time: results, errors, interrupts and the end reach a synchronous trainer."""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading
import time
import traceback

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.errors import BackendTimeout, BackendUnavailable, ConfigError, SchedulingError
from swift_rlx.scheduler import GroupRejected, IterableSource, PromptFeed, RolloutThread
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.types import DropReason, PolicyVersion, Score

FAST = FakeScript(ConstantLatency(0.001), tokens_per_s=1000.0)
NEVER = FakeScript(ConstantLatency(1e6))


@pytest.fixture(autouse=True)
def _heeds_ctrl_c():
    """A shell that started the tests in the background may have made them deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def thread(script=FAST, source=None, score=score_one, make=None, count=8, **options):
    made = []

    async def make_backends():
        made.append(FakeBackend(script=script))
        return made

    config = settings(abort_grace_s=options.pop("grace_s", 0.2), **options.pop("config", {}))
    source = source if source is not None else IterableSource(prompts(count))
    rollout = RolloutThread(config, make or make_backends, source, score, **options)
    rollout.made = made
    return rollout


def train(rollout):
    indices = []
    while (batch := rollout.next_batch()) is not None:
        indices += [one.group.prompt.index for one in batch.groups]
        rollout.wait_published(rollout.publish(None))
    return indices


def is_over(rollout):
    return not rollout._thread.is_alive and all(backend.is_closed for backend in rollout.made)


def test_a_synchronous_trainer_gets_every_prompt_once():
    with thread() as rollout:
        assert sorted(train(rollout)) == list(range(8))
        assert rollout.statistics().trained == 8
    assert is_over(rollout)
    assert rollout.statistics().open == 0
    assert rollout.made[0].published[-1] == PolicyVersion(0, 4)


def test_prompts_are_put_from_the_trainers_thread_before_and_after_the_start():
    rollout = thread(source=PromptFeed())
    rollout.put(prompts(2))
    with rollout:
        assert len(rollout.next_batch().groups) == 2
        rollout.publish(None)
        rollout.put(prompts(1, start=2))
        rollout.end_of_prompts()
        assert train(rollout) == [2]
        with pytest.raises(SchedulingError, match="put into a feed after its end"):
            rollout.put(prompts(1, start=3))


def test_only_a_feed_can_be_put_into():
    with pytest.raises(SchedulingError, match="cannot be put into a IterableSource; use a PromptFeed"):
        thread().put(prompts(1))


def test_an_error_while_the_backends_start_is_raised_by_start():
    async def fail():
        await asyncio.sleep(0.01)
        raise BackendUnavailable("no card")

    rollout = thread(make=fail)
    with pytest.raises(BackendUnavailable, match="no card") as caught:
        rollout.start()
    assert "in fail" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert is_over(rollout)


def test_backends_are_closed_where_the_scheduler_refuses_them():
    rollout = thread()

    async def two_of_a_name():
        rollout.made += [FakeBackend(), FakeBackend()]
        return rollout.made

    rollout._make_backends = two_of_a_name
    with pytest.raises(ConfigError, match="each with its own name"):
        rollout.start()
    assert is_over(rollout)


def test_a_waiting_trainer_gets_the_pipelines_own_error_within_a_second():
    fault_s = []

    async def broken(prompt, completions):
        await asyncio.sleep(0.05)
        fault_s.append(time.monotonic())
        raise ZeroDivisionError("reward of nothing")

    with (
        pytest.raises(ZeroDivisionError, match="reward of nothing") as caught,
        thread(score=broken) as rollout,
    ):
        rollout.next_batch()
    assert time.monotonic() - fault_s[0] < 1.0
    assert "in broken" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert is_over(rollout)


def test_a_timeout_of_the_trainer_loses_no_batch():
    with thread(FakeScript(ConstantLatency(0.3), tokens_per_s=100.0), count=2) as rollout:
        with pytest.raises(
            BackendTimeout, match=r"no batch within 0\.05 s: of 2 groups 0 are ready; 2 requests"
        ):
            rollout.next_batch(timeout_s=0.05)
        assert sorted(train(rollout)) == [0, 1]


def test_a_timeout_of_the_pipeline_is_not_taken_for_one_of_the_waiting():
    with (
        thread(NEVER, config={"warm_up_limit_s": 0.05}) as rollout,
        pytest.raises(BackendTimeout, match=r"no first batch within 0\.05 s"),
    ):
        rollout.next_batch()


def test_weights_that_do_not_go_live_in_time_are_a_timeout():
    with thread(FakeScript(ConstantLatency(0.001), publish_s=30.0)) as rollout:
        version = rollout.publish(None)
        with pytest.raises(BackendTimeout, match=r"weights 0\.1 are not live after 0\.05 s"):
            rollout.wait_published(version, timeout_s=0.05)


def test_ctrl_c_ends_a_wait_and_the_batch_goes_to_the_next_call():
    gate = asyncio.Event()

    async def wait_at_the_gate(prompt, completions):
        await gate.wait()
        return [Score(1.0)] * len(completions)

    with thread(score=wait_at_the_gate, count=2) as rollout:
        timer = threading.Timer(0.1, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            rollout.next_batch()
        timer.join()
        rollout._thread.loop.call_soon_threadsafe(gate.set)
        assert sorted(train(rollout)) == [0, 1]


def test_ctrl_c_inside_the_block_ends_the_thread_and_the_workers():
    rollout = thread(NEVER)
    with pytest.raises(KeyboardInterrupt), rollout:
        raise KeyboardInterrupt
    assert is_over(rollout)


def test_ctrl_c_while_the_backends_start_ends_the_thread():
    async def hang():
        await asyncio.sleep(1e6)

    rollout = thread(make=hang)
    threading.Timer(0.1, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        rollout.start()
    assert is_over(rollout)


def test_closing_twice_and_closing_what_never_started_does_nothing():
    rollout = thread()
    with rollout:
        pass
    rollout.close()
    thread().close()


def test_after_the_end_a_call_says_so():
    rollout = thread()
    with pytest.raises(SchedulingError, match="call start first"):
        rollout.next_batch()
    with rollout:
        with pytest.raises(SchedulingError, match="was started before"):
            rollout.start()
        assert sorted(train(rollout)) == list(range(8))
    with pytest.raises(SchedulingError, match="the rollout thread is closed"):
        rollout.publish(None)


def test_a_law_that_is_found_broken_at_the_end_is_told_and_kept(caplog):
    rollout = thread()
    rollout.start()
    train(rollout)
    rollout.loop.call_soon_threadsafe(rollout.scheduler.ledger.arrived, 5)  # and never settled
    rollout.close()
    rollout.close()
    assert isinstance(rollout.failure, SchedulingError)
    message = "5 of 13 tokens are counted as in flight, but the groups and answers that have not ended hold 0"
    assert message in str(rollout.failure)
    assert caplog.text.count(message) == 1


def test_a_thread_that_is_stuck_is_left_behind_in_time(caplog):
    released = threading.Event()

    async def blocks(prompt, completions):
        released.wait(5.0)
        return [Score(1.0)] * len(completions)

    rollout = thread(score=blocks, close_limit_s=0.2)
    rollout.start()
    time.sleep(0.1)
    begin = time.monotonic()
    rollout.close()
    assert time.monotonic() - begin < 1.0
    assert "did not end within 0.2 s and is left behind" in caplog.text
    assert rollout._thread._thread.daemon
    released.set()
    rollout._thread._thread.join(5.0)


def test_a_caller_does_not_wait_for_a_thread_that_is_gone():
    rollout = thread(NEVER)
    rollout.start()
    # What no code of ours does: the loop's main task is ended under the caller that waits.
    threading.Timer(
        0.1, lambda: rollout._thread.loop.call_soon_threadsafe(rollout._thread.main_task.cancel)
    ).start()
    with pytest.raises(SchedulingError, match=r"the scheduler is closed|the rollout thread has ended"):
        rollout.next_batch()
    rollout.close()


def test_workers_that_hang_do_not_hold_up_the_end():
    rollout = thread(FakeScript(fault=lambda request: Fault(None, deaf=True)))
    rollout.start()
    time.sleep(0.05)
    begin = time.monotonic()
    rollout.close()
    assert time.monotonic() - begin < 2.0
    assert is_over(rollout)


def test_a_rejected_group_is_replaced_from_its_end():
    feed = PromptFeed(prompts(3))
    feed.close()

    async def reject_the_second(prompt, completions):
        scores = [Score(1.0)] * len(completions)
        if prompt.index == 1:
            raise GroupRejected(DropReason.NO_SPREAD, scores, "standard deviation 0")
        return scores

    ends = []

    def on_end(end):
        ends.append(end)
        if end.drop_reason is DropReason.NO_SPREAD:
            feed.replace(prompts(1, start=7)[0])

    with thread(source=feed, score=reject_the_second, on_end=on_end) as rollout:
        assert sorted(train(rollout)) == [0, 2, 7]
    (rejected,) = [end for end in ends if end.drop_reason]
    assert rejected.detail == "standard deviation 0"
    assert [one.score.reward for one in rejected.group.members] == [1.0]
