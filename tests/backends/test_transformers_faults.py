"""Faults of a model, of its device and of the thread that decodes: what ends, and what goes on."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from transformers_runs import PROMPTS, PausedModel, endless, request, run

from swift_rlx.backends.transformers_batch import TokenBatch
from swift_rlx.errors import BackendUnavailable, WorkerDied
from swift_rlx.types import PolicyVersion


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return endless(tiny_model)


def test_a_fault_of_the_model_ends_its_answers_and_the_engine_goes_on(tiny):
    async def work(engine):
        def fault(module, arguments):
            hook.remove()
            raise ValueError("out of memory")

        hook = tiny.model.register_forward_pre_hook(fault)
        with pytest.raises(BackendUnavailable, match="the model failed with ValueError: out of memory"):
            await engine.generate(request(PROMPTS[0]))
        return await engine.generate(request(PROMPTS[0]))

    assert run(tiny, work).num_tokens == 12


def test_a_fault_while_batches_are_put_together_ends_both_and_no_more(tiny, monkeypatch):
    def fault(batch, other):
        raise MemoryError("no room")

    async def work(engine):
        paused = PausedModel(tiny.model, at=5)
        first = asyncio.ensure_future(engine.generate(request(PROMPTS[0], "first", max_tokens=400)))
        await paused.reached()
        second = asyncio.ensure_future(engine.generate(request(PROMPTS[1], "second")))
        monkeypatch.setattr(TokenBatch, "take_over", fault)
        await paused.go()
        for flying in (first, second):
            with pytest.raises(BackendUnavailable, match="the model failed with MemoryError: no room"):
                await flying
        return await engine.generate(request(PROMPTS[0], "third"))

    assert run(tiny, work).num_tokens == 12


def test_a_fault_while_ended_answers_are_taken_out_ends_their_batch_and_no_more(tiny, monkeypatch):
    def fault(batch, rows):
        monkeypatch.undo()
        raise MemoryError("no room")

    monkeypatch.setattr(TokenBatch, "select", fault)

    async def work(engine):
        short, long = (request(PROMPTS[row], f"{row}", max_tokens=3 + 9 * row) for row in (0, 1))
        first, second = await asyncio.gather(*map(engine.generate, (short, long)), return_exceptions=True)
        assert first.num_tokens == 3
        assert isinstance(second, BackendUnavailable)
        assert "the model failed with MemoryError: no room" in str(second)
        return await engine.generate(request(PROMPTS[0], "third"))

    assert run(tiny, work).num_tokens == 12


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_accelerator_that_computes_no_more_is_the_end_of_the_engine(tiny):
    def out_of_order(*arguments):
        raise RuntimeError("an illegal memory access was encountered")

    async def work(engine):
        paused = PausedModel(tiny.model, at=5)
        flying = asyncio.ensure_future(engine.generate(request(PROMPTS[0], "a")))
        waiting = asyncio.ensure_future(engine.generate(request(PROMPTS[1], "b")))
        await paused.reached()
        hook = tiny.model.register_forward_pre_hook(out_of_order)
        await paused.go()
        failed, lost = await asyncio.gather(flying, waiting, return_exceptions=True)
        hook.remove()
        assert type(failed) is BackendUnavailable
        assert type(lost) is WorkerDied
        for call in (engine.health(), engine.generate(request(PROMPTS[0])), engine.logprobs(np.arange(3))):
            with pytest.raises(WorkerDied, match="the decoder has ended by RuntimeError: an illegal memory"):
                await call

    run(tiny, work, max_inflight=1)


def test_health_is_said_by_the_thread_that_decodes(tiny):
    async def work(engine):
        paused = PausedModel(tiny.model, at=5)
        flying = asyncio.ensure_future(engine.generate(request(PROMPTS[0])))
        await paused.reached()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.health(), 0.1)
        await paused.go()
        await flying
        return await engine.health()

    assert run(tiny, work).version == PolicyVersion()
