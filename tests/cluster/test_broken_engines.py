"""An engine that is broken for good ends its worker, which is started again with the current weights."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from transformers_runs import endless, save_full
from worker_runs import until

from swift_rlx.backends import EngineSpec
from swift_rlx.cluster import WorkerProcess
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.types import Prompt, SamplingParams, Score

PROMPTS = 8


async def score(prompt, completions):
    return [Score(1.0) for _ in completions]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_survives_the_end_of_a_decoder_and_weights_that_are_torn(tiny_model, tmp_path):
    files = save_full(endless(tiny_model).model, tmp_path / "weights")
    spec = EngineSpec(
        "breaking_engine:create", str(tiny_model), max_model_len=60, options={"faults": str(tmp_path)}
    )
    worker = WorkerProcess(spec, run_directory=tmp_path)
    prompts = [Prompt(index, np.array([20, 21, 22], np.int32)) for index in range(PROMPTS)]
    config = RolloutConfig(
        batch_groups=1,
        group_size=2,
        max_staleness=1,
        outage_limit_s=200.0,
        sampling=SamplingParams(max_tokens=8),
    )

    async def main():
        await worker.start()
        trained = []
        async with RolloutScheduler(config, [worker], IterableSource(prompts), score) as scheduler:
            while (batch := await scheduler.next_batch()) is not None:
                trained.append(batch.groups[0].group.prompt.index)
                if fault := {2: "end", 4: "tear"}.get(len(trained)):
                    (tmp_path / fault).touch()
                await scheduler.published(scheduler.publish(files))
            await until(lambda: not list(tmp_path.glob("tear")), 60.0)
            return trained, await worker.health()

    trained, health = asyncio.run(main())
    assert sorted(trained) == list(range(PROMPTS))
    assert worker.start_number == 3
    assert health.version.step == PROMPTS
    log = worker.log.read_text()
    assert "the decoder has ended by RuntimeError: the planted end" in log
    assert "failed midway with OSError: the planted tear" in log
