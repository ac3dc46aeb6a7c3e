"""A reward that wants an alarm outside of the main thread is noticed, whatever it makes of the refusal."""

import asyncio
import signal
import threading
from signal import signal as imported_before

import pytest

from swift_rlx.rewards import AlarmWatch, OnError, checked_reward, describe_reward


def plain(completion):
    return 1.0


def uncaught(completion):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return 1.0


def hidden(completion):
    try:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    except BaseException:  # noqa: BLE001 (the worst that a verifier may do)
        return 0.0
    return 1.0


def told_otherwise(completion):
    try:
        imported_before(signal.SIGALRM, signal.SIG_IGN)
    except ValueError as error:
        raise RuntimeError("no threads here") from error
    return 1.0


async def awaited(completion):
    return uncaught(completion)


async def in_another_thread(completion):
    return await asyncio.to_thread(uncaught, completion)


def in_thread(work):
    """What `work` returns or raises in a thread."""
    seen = []

    def run():
        try:
            seen.append(work())
        except BaseException as error:  # noqa: BLE001
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return seen[0]


@pytest.mark.parametrize("policy", ["raise", "none", "value:1"])
@pytest.mark.parametrize("target", [uncaught, hidden, told_otherwise, awaited, in_another_thread])
def test_a_wanted_alarm_is_noticed_and_no_failure_of_the_reward(target, policy):
    reward, watch = checked_reward(describe_reward("it", target), OnError.parse(policy)), AlarmWatch()
    counters = reward.counters

    async def awaiting():
        with watch.noticing() as notice:
            await reward(["a", "b"])
        return notice.alarm

    def calling():
        if reward.spec.is_async:
            return asyncio.run(awaiting())
        with watch.noticing() as notice:
            reward(["a", "b"])
        return notice.alarm

    with watch.installed():
        assert in_thread(calling) is True
    assert not counters.failures
    assert not reward._plan._warned, "a user would be told of a failure that is none"


def test_what_a_reward_raises_otherwise_is_raised():
    watch = AlarmWatch()

    def failing():
        with watch.noticing():
            raise RuntimeError("no verdict")

    with watch.installed():
        assert str(in_thread(failing)) == "no verdict"


def test_alarms_of_others_and_in_the_main_thread_are_left_alone():
    watch, before = AlarmWatch(), signal.getsignal(signal.SIGALRM)
    with watch.installed():
        assert isinstance(in_thread(lambda: uncaught("")), ValueError)
        with watch.noticing() as notice:
            assert hidden("") == 1.0
        assert not notice.alarm
        signal.signal(signal.SIGALRM, before)
    assert "only works in main thread" in str(in_thread(lambda: uncaught("")))
    assert signal.getsignal(signal.SIGALRM) is before
