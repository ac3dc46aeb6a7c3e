"""Virtual time: hours in milliseconds, always the same order, and a deadlock is an error."""

from __future__ import annotations

import asyncio
import time

import pytest

from swift_rlx.clock import LoopClock
from swift_rlx.testing.virtual_clock import Deadlock, run_virtual


def test_a_day_of_sleep_takes_no_time():
    async def main():
        clock = LoopClock()
        begin = clock.now()
        await clock.sleep(86_400.0)
        return clock.now() - begin

    real = time.monotonic()
    assert run_virtual(main()) == pytest.approx(86_400.0)
    assert time.monotonic() - real < 5


def test_tasks_run_in_the_order_of_their_timers():
    seen = []

    async def note(name, seconds):
        await LoopClock().sleep(seconds)
        seen.append(name)

    async def main():
        await asyncio.gather(note("late", 3.0), note("early", 1.0), note("between", 2.0))

    run_virtual(main())
    assert seen == ["early", "between", "late"]


def test_a_planned_call_runs_once_at_its_time_unless_it_is_cancelled():
    seen = []

    async def main():
        clock = LoopClock()
        clock.call_later(2.0, lambda: seen.append(clock.now()))
        clock.call_later(1.0, lambda: seen.append("cancelled")).cancel()
        await clock.sleep(5.0)

    run_virtual(main())
    assert seen == [pytest.approx(2.0)]


def test_a_time_limit_works_in_virtual_time():
    async def main():
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)
        return LoopClock().now()

    assert run_virtual(main()) == pytest.approx(3600)


@pytest.mark.parametrize("now_s", [1e6, 1e9])
def test_timers_end_also_after_weeks_and_years(now_s):
    """The resolution of asyncio's clock, 1e-9 s, is then less than the time's own."""

    async def main():
        await LoopClock().sleep(now_s)
        for _ in range(3):
            await LoopClock().sleep(0.7)
        return LoopClock().now()

    assert run_virtual(main()) == pytest.approx(now_s + 2.1)


def test_a_deadlock_names_the_tasks_that_wait():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="all tasks wait for each other: main"):
        run_virtual(main())


def test_an_error_comes_out_and_other_tasks_are_ended():
    ended = []

    async def forever():
        try:
            await LoopClock().sleep(1e9)
        finally:
            ended.append(True)

    async def main():
        task = asyncio.ensure_future(forever())
        await LoopClock().sleep(1.0)
        assert not task.done()
        raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        run_virtual(main())
    assert ended == [True]
