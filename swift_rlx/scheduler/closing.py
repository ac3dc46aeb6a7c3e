"""How a run ends: its loops, the requests with the tokens that they have, the scoring, and last the backends."""

from __future__ import annotations

import asyncio

from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome
from swift_rlx.scheduler.generation import Generation
from swift_rlx.scheduler.requests import within
from swift_rlx.scheduler.state import RunState


async def close_run(state: RunState, generation: Generation) -> None:
    """End everything; what has not ended is carried over. A second call does nothing."""
    if state.is_closing:
        return
    state.is_closing = True
    state.events.wake_waiters()
    try:
        await state.supervisor.stop_loops()
        generation.cut_all()
        await _wait_for_requests(state)
        await state.supervisor.stop_tasks()
        _carry_over(state)
        await _close_backends(state)
    finally:
        state.away.pause()  # the counters are read when the loop, whose time it takes, has gone


async def _wait_for_requests(state: RunState) -> None:
    """Give the backends the grace to hand over what they have."""
    over = asyncio.Event()
    timer = state.clock.call_later(state.config.abort_grace_s, over.set)
    while state.router.inflight and not over.is_set():
        state.events.generate.clear()  # set by every request that ends; its loop has gone
        waits = [asyncio.ensure_future(event.wait()) for event in (state.events.generate, over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    timer.cancel()


def _carry_over(state: RunState) -> None:
    scored = {ready.group.order: ready.group for ready in state.ready.groups()}
    for group in state.book.carry_over():
        record = scored.get(group.order) or group.record()
        state.on_end(GroupEnd(record, GroupOutcome.CARRIED))


async def _close_backends(state: RunState) -> None:
    closing = [
        within(state.config.abort_grace_s, worker.backend.close(), f"worker '{worker.name}' to close")
        for worker in state.router.workers
    ]
    await asyncio.gather(*closing, return_exceptions=True)
