"""Answers of the transformers engine against `generate` and a plain forward of the same model."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers_runs import (
    PROMPTS,
    PausedModel,
    answers,
    apart,
    endless,
    logits,
    logprobs,
    request,
    run,
    spec,
)

from swift_rlx.backends import BACKENDS
from swift_rlx.backends.transformers_engine import create
from swift_rlx.backends.transformers_loading import load
from swift_rlx.errors import BackendRejected, BackendUnavailable, ConfigError
from swift_rlx.types import FinishReason, PolicyVersion


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return endless(tiny_model)


def test_greedy_answers_are_those_of_generate(tiny):
    asked = [request(ids, f"{row}", temperature=0.0, seed=row) for row, ids in enumerate(PROMPTS)]
    for one, answer in zip(asked, answers(tiny, asked), strict=True):
        ids = torch.tensor(one.prompt.token_ids).long()[None]
        expected = tiny.model.generate(
            ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, ids.shape[1] :]
        assert answer.token_ids.tolist() == expected.tolist()
        assert apart(answer.logprobs, logprobs(tiny.model, one, answer)) < 1e-4


def test_log_probs_are_those_of_the_temperature_that_was_sampled_at(tiny):
    asked = [
        request(PROMPTS[row % 4], f"{row}", temperature=0.7, seed=row, max_tokens=24) for row in range(16)
    ]
    found = answers(tiny, asked)
    served = np.concatenate([answer.logprobs for answer in found])

    def forward(temperature):
        pairs = zip(asked, found, strict=True)
        return np.concatenate([logprobs(tiny.model, *pair, temperature) for pair in pairs])

    assert apart(served, forward(0.7)) < 1e-4
    assert abs(np.exp(forward(0.7) - served).mean() - 1) < 5e-4
    for wrong in (1.0, 0.72):
        assert apart(served, forward(wrong)) > 0.05


def test_log_probs_include_the_filters(tiny):
    filters = {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3, "temperature": 0.8}
    asked = [request(PROMPTS[row % 4], f"{row}", seed=row, **filters) for row in range(8)]
    plain = LogitsProcessorList([TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.01)])
    for one, answer in zip(asked, answers(tiny, asked), strict=True):
        text = torch.tensor(np.concatenate([one.prompt.token_ids, answer.token_ids])).long()[None]
        scores = logits(tiny.model, one, answer)
        for place, token in enumerate(answer.token_ids):
            before = text[:, : len(one.prompt.token_ids) + place]
            row = RepetitionPenaltyLogitsProcessor(1.3)(before, scores[place : place + 1]) / 0.8
            expected = plain(before, row).log_softmax(-1)[0, token]
            assert abs(float(expected) - answer.logprobs[place]) < 1e-4
        assert apart(answer.logprobs, logprobs(tiny.model, one, answer, 0.8)) > 0.05


def test_an_answer_depends_on_its_seed_and_not_on_its_neighbors(tiny):
    mixed = [{"temperature": 0.0}, {"top_k": 5}, {"repetition_penalty": 1.5}, {}, {}, {"top_p": 0.5}, {}]
    one = request(PROMPTS[0], "one", temperature=0.9, seed=7, max_tokens=40)
    others = [
        request(PROMPTS[row % 4], f"{row}", seed=row, max_tokens=5 + 6 * row, **fields)
        for row, fields in enumerate(mixed)
    ]
    [alone] = answers(tiny, [one])
    among = answers(tiny, [*others, one])[-1]
    assert among.token_ids.tolist() == alone.token_ids.tolist()
    assert apart(among.logprobs, alone.logprobs) < 1e-4
    [another] = answers(tiny, [replace(one, sampling=replace(one.sampling, seed=8))])
    assert another.token_ids.tolist() != alone.token_ids.tolist()


def test_a_prompt_goes_through_the_model_once_for_its_group_and_the_groups_decode_together(tiny):
    shapes = []
    hook = tiny.model.register_forward_pre_hook(
        lambda module, arguments, named: shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )

    async def work(engine):
        shapes.clear()
        asked = [request(PROMPTS[row % 2], f"{row}", seed=row, max_tokens=6) for row in range(8)]
        await asyncio.gather(*map(engine.generate, asked))

    run(tiny, work)
    hook.remove()
    prompts = [shape for shape in shapes if shape[1] > 1]
    assert sum(rows for rows, _ in prompts) == 2
    assert [shape for shape in shapes if shape[1] == 1] == [(8, 1)] * 5


def test_a_request_that_comes_later_joins_the_running_batch(tiny):
    rows = []

    async def work(engine):
        paused = PausedModel(tiny.model, at=4)
        first = asyncio.ensure_future(engine.generate(request(PROMPTS[0], "first", seed=1, max_tokens=20)))
        await paused.reached()
        hook = tiny.model.register_forward_pre_hook(
            lambda module, arguments, named: rows.append(len(named["input_ids"])), with_kwargs=True
        )
        second = asyncio.ensure_future(engine.generate(request(PROMPTS[1], "second", seed=2, max_tokens=20)))
        await paused.go()
        found = await asyncio.gather(first, second)
        hook.remove()
        return found

    first, second = run(tiny, work)
    assert rows.count(2) > 10
    for answer, ids in ((first, PROMPTS[0]), (second, PROMPTS[1])):
        assert apart(answer.logprobs, logprobs(tiny.model, request(ids), answer)) < 1e-4


def test_no_more_answers_are_in_flight_than_allowed(tiny):
    rows = []
    hook = tiny.model.register_forward_pre_hook(
        lambda module, arguments, named: rows.append(len(named["input_ids"])), with_kwargs=True
    )
    found = answers(tiny, [request(PROMPTS[0], f"{row}", seed=row) for row in range(7)], max_inflight=3)
    hook.remove()
    assert max(rows) == 3
    assert [answer.num_tokens for answer in found] == [12] * 7


def test_an_answer_says_why_it_ended_and_holds_what_ended_it(tiny):
    [whole] = answers(tiny, [request(PROMPTS[0], seed=3)])
    ids = whole.token_ids.tolist()
    assert whole.finish_reason is FinishReason.LENGTH

    def ended(loaded, **sampling):
        [answer] = answers(loaded, [request(PROMPTS[0], seed=3, **sampling)])
        assert answer.finish_reason is FinishReason.STOP
        return answer.token_ids.tolist()

    assert ended(tiny, stop_token_ids=(ids[4],)) == ids[: ids.index(ids[4]) + 1]
    assert ended(replace(tiny, ends=frozenset([ids[4]]))) == ids[: ids.index(ids[4]) + 1]
    text = [tiny.tokenizer.decode(ids[: place + 1]) for place in range(len(ids))]
    stop = tiny.tokenizer.decode(ids[3:5])
    first = next(place for place, so_far in enumerate(text) if stop in so_far)
    assert ended(tiny, stop=("not in it", stop)) == ids[: first + 1]


def test_an_answer_is_cut_where_the_model_is_full(tiny):
    short = replace(tiny, max_length=10)
    [answer] = answers(short, [request(PROMPTS[0], max_tokens=50)])
    assert (answer.num_tokens, answer.finish_reason) == (6, FinishReason.LENGTH)


def test_the_ends_and_the_length_come_from_the_model(tiny_model):
    loaded = load(spec(tiny_model))
    assert loaded.ends == {loaded.tokenizer.eos_token_id}
    assert (loaded.max_length, loaded.vocabulary) == (512, 300)
    assert load(spec(tiny_model, max_model_len=100)).max_length == 100


def test_times_follow_each_other_and_versions_are_those_served(tiny):
    one = replace(request(PROMPTS[0]), submit_s=12.5)
    [answer] = answers(tiny, [one], version=PolicyVersion(3, 41))
    assert answer.submit_s == 12.5
    assert 0 < answer.start_s < answer.first_token_s < answer.finish_s
    assert (answer.incarnation, set(answer.policy_steps)) == (3, {41})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request([]), "prompt 0 is refused: it has no token"),
        (request([1, 300]), "its ids go from 1 to 300, and the model has 0 to 299"),
        (request([-1, 2]), "its ids go from -1 to 2"),
        (request([5] * 512), "it has 512 tokens and the model takes 512, the answer included"),
        (request([5], top_p=0.0), "top_p 0 is refused"),
        (request([5], max_tokens=0), "max_tokens 0 is refused"),
        (request([5], temperature=-1.0), "temperature -1 is refused"),
        (request([5], inputs={"attention_mask": np.ones((1, 1))}), "the engine makes these itself"),
    ],
)
def test_what_cannot_be_answered_is_rejected_in_a_sentence(tiny, asked, message):
    with pytest.raises(BackendRejected, match=message):
        answers(tiny, [asked])


def test_stop_strings_need_a_tokenizer(tiny):
    with pytest.raises(BackendRejected, match="gave no tokenizer"):
        answers(replace(tiny, tokenizer=None), [request([5], stop=("x",))])


def test_an_id_that_is_in_flight_is_rejected(tiny):
    with pytest.raises(BackendRejected, match="'same' is refused: one of that id is in flight"):
        answers(tiny, [request([5], "same"), request([6], "same")])


def test_an_aborted_answer_has_the_tokens_made_so_far_and_a_waiting_one_has_none(tiny):
    asked = request(PROMPTS[0], "a", seed=5, max_tokens=40)
    [whole] = answers(tiny, [asked])

    async def work(engine):
        paused = PausedModel(tiny.model, at=9)
        running = asyncio.ensure_future(engine.generate(asked))
        waiting = asyncio.ensure_future(engine.generate(request(PROMPTS[1], "b")))
        await paused.reached()
        await engine.abort(["a", "b", "nobody's"])
        await paused.go()
        return await asyncio.gather(running, waiting, engine.generate(request(PROMPTS[1], "c")))

    running, waiting, later = run(tiny, work, max_inflight=1)
    assert running.finish_reason is waiting.finish_reason is FinishReason.ABORT
    assert running.num_tokens == 9
    assert running.token_ids.tolist() == whole.token_ids[:9].tolist()
    assert waiting.num_tokens == 0
    assert later.finish_reason is FinishReason.LENGTH


def test_a_cancelled_request_frees_its_place(tiny):
    async def work(engine):
        paused = PausedModel(tiny.model, at=5)
        first = asyncio.ensure_future(engine.generate(request(PROMPTS[0], "a", max_tokens=400)))
        await paused.reached()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await paused.go()
        return await engine.generate(request(PROMPTS[1], "a"))

    assert run(tiny, work, max_inflight=1).num_tokens == 12


def test_an_answer_of_one_token_is_one_token(tiny):
    asked = [request(PROMPTS[0], f"{row}", seed=row, max_tokens=1 + 3 * (row % 2)) for row in range(4)]
    long, short = answers(tiny, asked)[1::2], answers(tiny, asked)[::2]
    assert [answer.num_tokens for answer in (*short, *long)] == [1, 1, 4, 4]


def test_closing_fails_what_is_in_flight_and_what_comes_later(tiny):
    async def work(engine):
        paused = PausedModel(tiny.model, at=5)
        flying = asyncio.ensure_future(engine.generate(request(PROMPTS[0], max_tokens=400)))
        await paused.reached()
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0.05)  # the thread that closes
        await paused.go()
        with pytest.raises(BackendUnavailable, match="closed") as caught:
            await flying
        await closing
        await engine.close()
        for call in (engine.generate(request(PROMPTS[0])), engine.health(), engine.logprobs(np.arange(3))):
            with pytest.raises(
                BackendUnavailable, match="engine 'transformers' cannot serve: the decoder is closed"
            ):
                await call
        return caught.value.lost_tokens

    assert run(tiny, work) == 5


def test_logprobs_of_a_text_are_those_of_a_plain_forward(tiny):
    ids = np.arange(30, 45, dtype=np.int32)
    served = run(tiny, lambda engine: engine.logprobs(ids))
    whole = torch.tensor(ids).long()[None]
    with torch.no_grad():
        scores = tiny.model(whole).logits[0, :-1].log_softmax(-1)
    expected = scores.gather(1, whole[0, 1:, None])[:, 0].numpy()
    assert served.dtype == np.float32
    assert apart(served, expected) < 1e-5


def untied(path, size):
    config = LlamaConfig(hidden_size=size, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                         vocab_size=50)  # fmt: skip
    return LlamaForCausalLM(config), None


def test_a_loader_is_found_by_its_dotted_path(monkeypatch):
    module = ModuleType("some_loaders")
    module.untied = untied
    monkeypatch.setitem(sys.modules, "some_loaders", module)
    engine = create(spec("anywhere", loader="some_loaders:untied", loader_options={"size": 8}))
    assert engine._loaded.model.config.hidden_size == 8
    assert not engine._loaded.model.training
    asyncio.run(engine.close())
    with pytest.raises(ConfigError, match="'some_loaders' is refused: it must be 'module:function'"):
        create(spec("anywhere", loader="some_loaders"))


def test_the_engine_is_offered_under_its_name():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    [offer] = re.findall(r'^transformers = "(.+)"$', project, re.MULTILINE)
    assert EntryPoint("transformers", offer, BACKENDS.group).load() is create
