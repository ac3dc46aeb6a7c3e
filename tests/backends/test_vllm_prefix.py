"""vLLM tells of its answers with exact versions, goes on behind another's tokens, and is missed when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from descendants import descendants
from vllm_runs import PROMPT, load, move, running_engine, save_full, save_model, score_answer

from swift_rlx.backends import EngineSpec, GenerationRequest
from swift_rlx.backends.progress import beginning, joined, sampled_part, shared_tokens
from swift_rlx.backends.vllm_environment import environment
from swift_rlx.cluster import WorkerProcess
from swift_rlx.errors import WorkerAbsent, WorkerDied
from swift_rlx.types import FinishReason, PolicyVersion, Prompt, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("vllm") / "model", tied=False)


@pytest.fixture(scope="module")
def run(folder):
    with running_engine(folder) as engine:
        yield engine


def request(name, **sampling):
    return GenerationRequest(name, Prompt(0, PROMPT), 0, SamplingParams(**{"max_tokens": 60, **sampling}))


def test_an_answer_goes_on_behind_the_tokens_of_another_attempt(run, folder):
    model = load(folder)
    for number, manner in enumerate(({"temperature": 0.0}, {"temperature": 0.0, "repetition_penalty": 1.4})):
        one = request(f"whole{number}", **manner)
        whole = run.run(run.engine.generate(one))
        for count in (1, 17, 59):
            prefix = beginning(sampled_part(whole), count)
            answer = run.run(run.engine.generate(replace(one, request_id=f"{number}/{count}", prefix=prefix)))
            assert answer.token_ids.tolist() == whole.token_ids.tolist()
            assert np.abs(answer.logprobs - whole.logprobs).max() < 1e-3
            assert answer.finish_reason is FinishReason.LENGTH
    drawn = request("drawn", temperature=0.7, seed=3)
    prefix = beginning(sampled_part(run.run(run.engine.generate(drawn))), 20)
    answer = run.run(run.engine.generate(replace(drawn, request_id="behind", prefix=prefix)))
    assert shared_tokens(sampled_part(answer), prefix) == 20
    assert np.abs(answer.logprobs - score_answer(model, answer, temperature=0.7)).max() < 1e-3


def test_a_stop_string_over_the_border_ends_the_answer(run):
    tokenizer = run.engine._llm.get_tokenizer()
    whole = run.run(run.engine.generate(request("text", temperature=0.0)))
    texts = [tokenizer.decode(whole.token_ids[:count]) for count in range(61)]
    place = next(at for at in range(8, 50) if len(texts[at + 1]) > len(texts[at]) > len(texts[at - 1]))
    stop = texts[place + 1][len(texts[place - 1]) :]  # the text of two tokens
    stopping = request("stopping", temperature=0.0, stop=(stop,))
    expected = run.run(run.engine.generate(stopping))
    assert expected.finish_reason is FinishReason.STOP
    prefix = beginning(sampled_part(expected), expected.num_tokens - 1)
    answer = run.run(run.engine.generate(replace(stopping, request_id="border", prefix=prefix)))
    assert answer.token_ids.tolist() == expected.token_ids.tolist()
    assert answer.finish_reason is FinishReason.STOP


def test_what_is_told_has_the_versions_of_the_finished_answer(run, folder, tmp_path):
    new = copy.deepcopy(load(folder))
    move(new, seed=9)
    files = save_full(new, tmp_path / "new")

    async def go():
        told = [[] for _ in range(4)]
        asked = [request(f"told{seed}", temperature=0.7, seed=seed, max_tokens=220) for seed in range(4)]
        tasks = [
            asyncio.ensure_future(run.engine.generate(one, chunks.append))
            for one, chunks in zip(asked, told, strict=True)
        ]
        while not all(told):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await run.engine.publish(PolicyVersion(0, 1), files)
        return told, await asyncio.gather(*tasks)

    told, answers = run.run(go())
    assert any(set(answer.policy_steps) == {0, 1} for answer in answers)
    for answer, chunks in zip(answers, told, strict=True):
        whole = joined(chunks)
        assert 0 < whole.num_tokens < answer.num_tokens
        assert shared_tokens(whole, sampled_part(answer)) == whole.num_tokens
    assert any(set(joined(chunks).policy_steps) == {0, 1} for chunks in told)


def test_a_stopped_process_of_vllm_is_missed_within_seconds_and_the_worker_comes_back(folder, tmp_path: Path):
    spec = EngineSpec(name="vllm", model=str(folder), max_model_len=512, max_inflight=8)

    async def go():
        worker = WorkerProcess(spec, run_directory=tmp_path, environment=environment(spec))
        try:
            await worker.start()
            told = []
            asking = asyncio.ensure_future(worker.generate(request("r", max_tokens=450), told.append))
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            [core] = descendants(worker.pid, "EngineCore")
            stopped = time.monotonic()
            os.kill(core.pid, signal.SIGSTOP)
            # The engine and its host both look; which of them sees it first is chance.
            with pytest.raises(WorkerDied, match=r"(EngineCore .*|of the engine) was stopped for 5 s"):
                await asking
            noticed_s = time.monotonic() - stopped
            answer = None
            while answer is None:
                with contextlib.suppress(WorkerAbsent, WorkerDied):  # dying, or gone
                    await worker.health()
                    answer = await worker.generate(
                        replace(request("r2", max_tokens=450), prefix=joined(told))
                    )
                await asyncio.sleep(0.2)
            return noticed_s, time.monotonic() - stopped, answer
        finally:
            await worker.close()

    noticed_s, recovered_s, answer = asyncio.run(go())
    assert noticed_s < 10
    assert recovered_s < 60
    assert answer.num_tokens == 450
