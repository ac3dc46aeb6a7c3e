"""A real vLLM engine with LoRA adapters that are replaced in their place, on a model without tied embeddings."""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_runs import (
    PROBE,
    EngineRun,
    greedy,
    load,
    move,
    move_adapter,
    running_engine,
    save_adapter,
    save_full,
    save_model,
    score,
    score_answer,
    with_adapter,
)

from swift_rlx.errors import BackendError, BackendUnavailable
from swift_rlx.types import PolicyVersion

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("adapters") / "model", tied=False)


@pytest.fixture(scope="module")
def run(base: Path) -> Iterator[EngineRun]:
    with running_engine(base, max_adapter_rank=4) as one:
        yield one


@pytest.fixture
def policy(base: Path) -> Any:
    """The starting weights with a fresh adapter, in PEFT."""
    return with_adapter(load(base))


def test_the_first_adapter_waits_for_the_answers_from_before_it(run, base, policy, tmp_path):
    move_adapter(policy, 1)
    files = save_adapter(policy, tmp_path / "v1")

    async def go():
        task = run.start(temperature=0.7, seed=1, max_tokens=200)
        await run.under_way(task)
        with pytest.raises(BackendError, match="1 answers in flight from before its first adapter"):
            await run.engine.publish(PolicyVersion(0, 1), files)
        before = await task
        await run.engine.publish(PolicyVersion(0, 1), files)
        return before, await run.start(temperature=0.7, seed=1, max_tokens=20)

    before, after = run.run(go())
    assert set(before.policy_steps) == {0}
    assert np.abs(before.logprobs - score_answer(load(base), before, temperature=0.7)).max() < 1e-3
    assert set(after.policy_steps) == {1}
    assert np.abs(after.logprobs - score_answer(policy, after, temperature=0.7)).max() < 1e-3


def test_three_publishes_are_served_and_the_adapters_before_are_not(run, policy, tmp_path):
    before = None
    for step in (1, 2, 3, 4):
        move_adapter(policy, seed=step)
        files = save_adapter(policy, tmp_path / f"v{step}")
        run.publish(step, files)
        shutil.rmtree(files.directory)  # the engine never reads them again
        served = run.run(run.engine.logprobs(PROBE))
        assert np.abs(served - score(policy, PROBE)).max() < 1e-4
        answer = run.answer(temperature=0, max_tokens=60)
        assert answer.token_ids.tolist() == greedy(policy, 60)
        assert np.abs(answer.logprobs - score_answer(policy, answer)).max() < 1e-4
        assert set(answer.policy_steps) == {step}
        if before is not None:
            assert np.abs(score(policy, PROBE) - score(before, PROBE)).max() > 0.1
            assert np.abs(served - score(before, PROBE)).max() > 0.1
            assert answer.token_ids.tolist() != greedy(before, 60)
        before = copy.deepcopy(policy)


def test_answers_in_flight_go_on_under_the_new_adapter_and_say_so(run, policy, tmp_path):
    move_adapter(policy, seed=1)
    run.publish(1, save_adapter(policy, tmp_path / "old"))
    new = copy.deepcopy(policy)
    move_adapter(new, seed=2)
    files = save_adapter(new, tmp_path / "new")

    async def go():
        tasks = [run.start(temperature=0.7, seed=seed, max_tokens=200) for seed in range(4)]
        await run.under_way(*tasks)
        await run.engine.publish(PolicyVersion(0, 2), files)
        return await asyncio.gather(*tasks)

    answers = run.run(go())
    assert any(set(answer.policy_steps) == {1, 2} for answer in answers)
    for answer in answers:
        old, now = (score_answer(model, answer, temperature=0.7) for model in (policy, new))
        expected = np.where(answer.policy_steps == 1, old, now)
        assert np.abs(answer.logprobs - expected).max() < 1e-3
        assert np.abs(old - now)[answer.policy_steps == 2].max(initial=1.0) > 0.1


def test_an_adapter_that_cannot_be_loaded_leaves_the_old_one_in_place(run, policy, tmp_path):
    move_adapter(policy, seed=3)
    run.publish(1, save_adapter(policy, tmp_path / "good"))
    big = with_adapter(load(Path(run.spec.model)), rank=16)
    for files in (save_adapter(big, tmp_path / "big"),):
        with pytest.raises(BackendUnavailable, match="rank 16"):
            run.publish(2, files)
    assert np.abs(run.run(run.engine.logprobs(PROBE)) - score(policy, PROBE)).max() < 1e-4
    assert run.run(run.engine.health()).version == PolicyVersion(0, 1)
    assert set(run.answer().policy_steps) == {1}


def test_full_weights_are_taken_while_nothing_is_in_flight(run, base, tmp_path):
    model = load(base)
    move(model, seed=5)
    files = save_full(model, tmp_path / "full")

    async def busy():
        task = run.start(max_tokens=200)
        await run.under_way(task)
        with pytest.raises(BackendError, match="1 answers in flight that need adapters"):
            await run.engine.publish(PolicyVersion(0, 7), files)
        await task

    run.run(busy())
    run.publish(7, files)
    assert np.abs(run.run(run.engine.logprobs(PROBE)) - score(model, PROBE)).max() < 1e-4
    answer = run.answer(temperature=0, max_tokens=30)
    assert answer.token_ids.tolist() == greedy(model, 30)
    assert set(answer.policy_steps) == {7}
    run.publish(8, save_full(load(base), tmp_path / "start"))


def test_a_text_is_scored_beside_answers_in_flight(run, policy, tmp_path):
    move_adapter(policy, seed=1)
    run.publish(1, save_adapter(policy, tmp_path / "v1"))

    async def go():
        tasks = [run.start(seed=seed, max_tokens=150) for seed in range(3)]
        await run.under_way(*tasks)
        scored = [await run.engine.logprobs(PROBE) for _ in range(3)]
        return scored, await asyncio.gather(*tasks)

    scored, answers = run.run(go())
    for found in scored:
        assert np.abs(found - score(policy, PROBE)).max() < 1e-4
    for answer in answers:
        assert np.abs(answer.logprobs - score_answer(policy, answer)).max() < 1e-3
