"""A real vLLM engine with full weights, tied embeddings, compared token by token with transformers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from vllm_runs import (
    MAX_MODEL_LEN,
    PROBE,
    PROMPT,
    EngineRun,
    greedy,
    load,
    logits_of,
    move,
    running_engine,
    save_full,
    save_model,
    score,
    score_answer,
)

from swift_rlx.errors import BackendError, BackendRejected
from swift_rlx.types import FinishReason, PolicyVersion

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("full") / "model", tied=True)


@pytest.fixture(scope="module")
def run(base: Path) -> Iterator[EngineRun]:
    # Steps that read fewer tokens than several prompts have: vLLM may not cut a prompt of a seeded answer.
    with running_engine(base, options={"max_num_batched_tokens": MAX_MODEL_LEN}) as one:
        yield one


@pytest.fixture
def start(run: EngineRun, base: Path, tmp_path: Path) -> Any:
    """The starting weights, in transformers and served by the engine."""
    model = load(base)
    run.publish(0, save_full(model, tmp_path / "start"))
    return model


def test_logprobs_are_those_of_the_sampling_that_was_used(run, start):
    answer = run.answer(temperature=0.7, seed=11, max_tokens=100)
    assert answer.num_tokens == 100
    assert np.abs(answer.logprobs - score_answer(start, answer, temperature=0.7)).max() < 1e-3
    assert np.abs(answer.logprobs - score_answer(start, answer, temperature=1.0)).max() > 0.1
    ratio = np.exp(score_answer(start, answer, temperature=0.7) - answer.logprobs).mean()
    assert abs(ratio - 1) < 5e-4


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"top_k": 20, "top_p": 0.8}],
    ids=str,
)
def test_logprobs_know_the_filters(run, start, filters):
    answer = run.answer(temperature=0.7, seed=5, max_tokens=40, **filters)
    whole = np.concatenate([PROMPT, answer.token_ids])
    logits = logits_of(start, whole)
    steps = LogitsProcessorList([TemperatureLogitsWarper(0.7)])
    if penalty := filters.get("repetition_penalty"):
        steps.insert(0, RepetitionPenaltyLogitsProcessor(penalty))
    if top_k := filters.get("top_k"):
        steps.append(TopKLogitsWarper(top_k))
    if top_p := filters.get("top_p"):
        steps.append(TopPLogitsWarper(top_p))
    if min_p := filters.get("min_p"):
        steps.append(MinPLogitsWarper(min_p))
    expected = []
    for at in range(len(PROMPT), len(whole)):
        before = torch.tensor(whole[None, :at].astype(np.int64))
        expected.append(torch.log_softmax(steps(before, logits[None, at - 1]), -1)[0, int(whole[at])].item())
    assert np.abs(answer.logprobs - expected).max() < 1e-3
    assert np.abs(answer.logprobs - score_answer(start, answer, temperature=0.7)).max() > 0.05


def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(run, start):
    alone = run.answer(seed=3, max_tokens=60)

    async def crowd():
        tasks = [run.start(seed=seed, max_tokens=60) for seed in (1, 2, 3, 4, 5)]
        return await asyncio.gather(*tasks)

    answers = run.run(crowd())
    assert answers[2].token_ids.tolist() == alone.token_ids.tolist()
    assert len({tuple(answer.token_ids) for answer in answers}) == 5


def test_prompts_longer_together_than_a_step_reads_are_answered(run, start):
    async def together() -> list[Any]:
        long = [np.arange(10 + n, 200 + n, dtype=np.int32) for n in range(8)]
        return await asyncio.gather(
            *(run.start(prompt, seed=n, max_tokens=4) for n, prompt in enumerate(long))
        )

    assert [len(one.token_ids) for one in run.run(together())] == [4] * 8


def test_three_publishes_are_served_and_the_weights_before_are_not(run, start, tmp_path):
    model, before = start, copy.deepcopy(start)
    for step in (1, 2, 3):
        move(model, seed=step)
        run.publish(step, save_full(model, tmp_path / f"v{step}"))
        served = run.run(run.engine.logprobs(PROBE))
        assert served.dtype == np.float32
        assert np.abs(served - score(model, PROBE)).max() < 1e-4
        assert np.abs(score(model, PROBE) - score(before, PROBE)).max() > 0.1
        assert np.abs(served - score(before, PROBE)).max() > 0.1
        answer = run.answer(temperature=0, max_tokens=60)
        assert answer.token_ids.tolist() == greedy(model, 60)
        assert answer.token_ids.tolist() != greedy(before, 60)
        assert np.abs(answer.logprobs - score_answer(model, answer)).max() < 1e-4
        assert set(answer.policy_steps) == {step}
        assert run.run(run.engine.health()).version == PolicyVersion(0, step)
        before = copy.deepcopy(model)


def test_answers_in_flight_go_on_under_the_new_weights_and_say_so(run, start, tmp_path):
    new = copy.deepcopy(start)
    move(new, seed=9)
    files = save_full(new, tmp_path / "new")

    async def go():
        tasks = [run.start(temperature=0.7, seed=seed, max_tokens=200) for seed in range(4)]
        await run.under_way(*tasks)
        await run.engine.publish(PolicyVersion(0, 1), files)
        return await asyncio.gather(*tasks)

    answers = run.run(go())
    assert any(set(answer.policy_steps) == {0, 1} for answer in answers)
    for answer in answers:
        assert answer.fault() is None
        assert (np.diff(answer.policy_steps) >= 0).all()
        old, now = (score_answer(model, answer, temperature=0.7) for model in (start, new))
        expected = np.where(answer.policy_steps == 0, old, now)
        assert np.abs(answer.logprobs - expected).max() < 1e-3
        assert np.abs(old - now)[answer.policy_steps == 1].max(initial=1.0) > 0.1


def test_a_prefix_that_was_cached_under_old_weights_is_computed_anew(run, start, tmp_path):
    prompt = np.tile(PROBE, 5)  # longer than a block of the cache
    run.answer(prompt, max_tokens=2)
    move(start, seed=4)
    run.publish(1, save_full(start, tmp_path / "v1"))
    answer = run.answer(prompt, seed=1, max_tokens=8)
    assert np.abs(answer.logprobs - score_answer(start, answer, prompt)).max() < 1e-3
    again = run.answer(prompt, seed=1, max_tokens=8)  # from the cache of the new weights
    assert again.token_ids.tolist() == answer.token_ids.tolist()
    assert np.abs(again.logprobs - answer.logprobs).max() < 1e-4
    assert len(run.run(run.engine.logprobs(prompt))) == len(prompt) - 1


def test_weights_that_are_not_the_whole_model_are_refused_and_the_old_ones_stay(run, start, tmp_path):
    before = run.run(run.engine.logprobs(PROBE))
    move(start, seed=2)
    good = save_full(start, tmp_path / "good")
    tensors = load_file(tmp_path / "good" / "weights.safetensors")
    norm = "model.norm.weight"
    cases = {
        "lack model.norm.weight": {k: v for k, v in tensors.items() if k != norm},
        "have in addition extra": {**tensors, "extra": torch.zeros(1)},
        r"model.norm.weight is \[3\] and not \[64\]": {**tensors, norm: torch.zeros(3)},
    }
    for sentence, changed in cases.items():
        save_file(changed, tmp_path / "good" / "weights.safetensors")
        with pytest.raises(BackendError, match=sentence):
            run.publish(5, good)
    (tmp_path / "good" / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(BackendError, match="no complete safetensors file"):
        run.publish(5, good)
    assert np.array_equal(run.run(run.engine.logprobs(PROBE)), before)
    assert run.run(run.engine.health()).version == PolicyVersion(0, 0)


def test_an_aborted_answer_ends_with_the_tokens_that_it_has(run, start):
    async def go():
        first = run.start(name="first", max_tokens=230, seed=1)
        second = run.start(name="second", max_tokens=40, seed=2)
        await run.under_way(first, second)
        await run.engine.abort(["first", "unknown"])
        return await asyncio.gather(first, second)

    first, second = run.run(go())
    assert first.finish_reason is FinishReason.ABORT
    assert first.num_tokens < 230
    assert len(first.logprobs) == len(first.policy_steps) == first.num_tokens
    assert np.abs(first.logprobs - score_answer(start, first)).max(initial=0) < 1e-3
    assert (second.finish_reason, second.num_tokens) == (FinishReason.LENGTH, 40)


def test_an_answer_aborted_at_once_ends_too(run, start):
    async def go():
        task = run.start(name="early", max_tokens=230)
        await asyncio.sleep(0)
        await run.engine.abort(["early"])
        return await task

    answer = run.run(go())
    assert answer.finish_reason is FinishReason.ABORT
    assert answer.num_tokens < 100


def test_bad_requests_are_refused_and_hurt_no_neighbor(run, start):
    bad = [
        (np.arange(MAX_MODEL_LEN, dtype=np.int32), {}),
        (np.array([], np.int32), {}),
        (np.array([5, 100_000], np.int32), {}),
        (PROMPT, {"temperature": -1.0}),
        (PROMPT, {"top_p": 1.5}),
        (PROMPT, {"max_tokens": 0}),
    ]

    async def go():
        good = [run.start(seed=seed) for seed in range(3)]
        refused = [run.start(prompt, **sampling) for prompt, sampling in bad]
        results = await asyncio.gather(*refused, return_exceptions=True)
        return results, await asyncio.gather(*good)

    refused, good = run.run(go())
    assert [type(error) for error in refused] == [BackendRejected] * len(bad)
    assert [answer.num_tokens for answer in good] == [32] * 3


def test_an_answer_that_reaches_the_longest_context_is_cut(run, start):
    prompt = np.full(MAX_MODEL_LEN - 10, 40, np.int32)
    answer = run.answer(prompt, max_tokens=100)
    assert (answer.num_tokens, answer.finish_reason) == (10, FinishReason.LENGTH)


def test_an_answer_ends_at_the_tokens_and_words_that_end_it_and_holds_them(run, start):
    free = run.answer(seed=8, max_tokens=60)
    stop = int(free.token_ids[20])
    first = free.token_ids.tolist().index(stop)
    ended = run.answer(seed=8, max_tokens=60, stop_token_ids=(stop,))
    assert ended.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert ended.finish_reason is FinishReason.STOP
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.spec.model)
    letters = [at for at in range(5, 60) if tokenizer.decode([free.token_ids[at]]).strip().isalnum()]
    word = tokenizer.decode([free.token_ids[letters[0]]]).strip()
    ended = run.answer(seed=8, max_tokens=60, stop=(word,))
    assert ended.finish_reason is FinishReason.STOP
    assert word in tokenizer.decode(ended.token_ids[-1:])
    assert ended.token_ids.tolist() == free.token_ids[: ended.num_tokens].tolist()
    assert len(ended.logprobs) == ended.num_tokens


def test_a_barred_token_is_never_sampled_and_the_logprobs_know(run, start):
    free = run.answer(temperature=0.7, seed=6, max_tokens=30)
    barred = tuple(sorted(set(free.token_ids.tolist())))
    answer = run.answer(temperature=0.7, seed=6, max_tokens=30, barred_token_ids=barred)
    assert not set(answer.token_ids.tolist()) & set(barred)
    whole = np.concatenate([PROMPT, answer.token_ids])
    logits = logits_of(start, whole)[len(PROMPT) - 1 : -1] / 0.7
    logits[:, list(barred)] = -torch.inf
    expected = torch.log_softmax(logits, -1)[
        torch.arange(30), torch.tensor(answer.token_ids.astype(np.int64))
    ]
    assert np.abs(answer.logprobs - expected.numpy()).max() < 1e-3
    assert np.abs(answer.logprobs - score_answer(start, answer, temperature=0.7)).max() > 0.05


def test_times_are_in_order_and_of_the_clock_that_all_processes_share(run, start):
    import time

    before = time.monotonic()
    answer = run.answer(max_tokens=40)
    assert answer.submit_s == 1.0
    assert before <= answer.start_s < answer.first_token_s < answer.finish_s <= time.monotonic()
    assert answer.worker == "vllm-0"


def test_a_text_is_scored_beside_answers_in_flight(run, start):

    async def go():
        tasks = [run.start(seed=seed, max_tokens=150) for seed in range(3)]
        await run.under_way(*tasks)
        scored = [await run.engine.logprobs(PROBE) for _ in range(3)]
        return scored, await asyncio.gather(*tasks)

    scored, answers = run.run(go())
    for found in scored:
        assert np.abs(found - score(start, PROBE)).max() < 1e-4
    for answer in answers:
        assert np.abs(answer.logprobs - score_answer(start, answer)).max() < 1e-3
