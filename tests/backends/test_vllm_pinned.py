"""A real vLLM engine whose answers keep the adapter that they began with; in the end its inner process is killed."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vllm_runs import (
    PROBE,
    EngineRun,
    load,
    move_adapter,
    running_engine,
    save_adapter,
    save_model,
    score,
    score_answer,
    with_adapter,
)

from swift_rlx.backends.vllm_processes import engine_processes
from swift_rlx.errors import WorkerDied
from swift_rlx.types import FinishReason, PolicyVersion

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
VERSIONS = 6


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("pinned") / "model", tied=True, ends=True)


@pytest.fixture(scope="module")
def run(base: Path) -> Iterator[EngineRun]:
    with running_engine(base, max_adapter_rank=8, options={"weight_update": "pin"}) as one:
        yield one


def test_every_answer_is_made_by_the_version_that_it_began_with(run, base, tmp_path):
    policy = with_adapter(load(base))
    models, files = [], []
    for step in range(VERSIONS):
        move_adapter(policy, seed=step)
        models.append(copy.deepcopy(policy))
        files.append(save_adapter(policy, tmp_path / f"v{step}"))

    async def go():
        tasks, beside = [], 0
        for step in range(VERSIONS):
            await run.engine.publish(PolicyVersion(0, step), files[step])
            shutil.rmtree(files[step].directory)
            beside += sum(not task.done() for task in tasks)
            tasks.append(run.start(temperature=0.7, seed=step, max_tokens=200))
            await run.under_way(tasks[-1])
        assert beside >= VERSIONS
        return await asyncio.gather(*tasks)

    answers = run.run(go())
    for step, answer in enumerate(answers):
        assert set(answer.policy_steps) == {step}
        expected = score_answer(models[step], answer, temperature=0.7)
        assert np.abs(answer.logprobs - expected).max() < 1e-3
        other = score_answer(models[(step + 1) % VERSIONS], answer, temperature=0.7)
        assert np.abs(answer.logprobs - other).max() > 0.1
    assert np.abs(run.run(run.engine.logprobs(PROBE)) - score(policy, PROBE)).max() < 1e-4


def test_an_answer_ends_at_the_models_own_end_token_and_holds_it(run, base):
    end = load(base).config.eos_token_id

    async def go():
        return await asyncio.gather(*(run.start(seed=seed, max_tokens=200) for seed in range(16)))

    answers = run.run(go())
    ended = [answer for answer in answers if answer.finish_reason is FinishReason.STOP]
    assert len(ended) > 1
    assert all(answer.token_ids.tolist().index(end) == answer.num_tokens - 1 for answer in ended)
    assert all(end not in answer.token_ids for answer in answers if answer not in ended)


def test_a_killed_inner_process_is_noticed_at_once_and_the_tokens_are_counted_as_lost(run):
    """The last test of the file: the engine is gone after it."""
    [core] = [pid for pid, title in engine_processes().items() if "EngineCore" in title]
    long = [seed for seed in range(16) if run.answer(seed=seed, max_tokens=230).num_tokens == 230][:3]

    async def go():
        tasks = [run.start(seed=seed, max_tokens=230) for seed in long]
        await run.under_way(*tasks)
        os.kill(core, signal.SIGKILL)
        killed = time.monotonic()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        return errors, time.monotonic() - killed

    errors, seconds = run.run(go())
    assert [type(error) for error in errors] == [WorkerDied] * 3
    assert seconds < 2
    assert all(error.lost_tokens > 0 for error in errors)
    assert "EngineCore" in str(errors[0])
    with pytest.raises(WorkerDied):
        run.run(run.engine.health())
    with pytest.raises(WorkerDied):
        run.answer()
