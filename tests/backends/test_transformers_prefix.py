"""Going on behind the tokens of another attempt: the answer is the one that nothing had disturbed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vision import MARK, save_pictures, save_tiny_vision
from transformers import AutoProcessor, LlavaForConditionalGeneration
from transformers_runs import PROMPTS, answers, apart, endless, loaded_model, request, run
from worker_runs import until

from swift_rlx.backends.progress import beginning, joined, sampled_part, shared_tokens
from swift_rlx.errors import BackendUnavailable
from swift_rlx.types import FinishReason, PolicyVersion


@pytest.fixture(scope="module")
def tiny(tiny_model):
    """Its answers end at no length: one that is still made when a test looks has to be in flight."""
    return replace(endless(tiny_model), max_length=None)


def behind(one, answer, count, **sampling):
    """The request again, with the first `count` tokens of the answer."""
    return replace(
        one,
        request_id=f"{one.request_id}/{count}",
        prefix=beginning(sampled_part(answer), count),
        sampling=replace(one.sampling, **sampling),
    )


MANNERS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 5},
    "filtered": {"top_k": 20, "top_p": 0.9, "temperature": 0.7, "seed": 6},
    "repetition": {"repetition_penalty": 1.5, "temperature": 0.0},
}


@pytest.mark.parametrize("manner", MANNERS)
def test_the_answer_is_the_undisturbed_one_wherever_it_was_broken_off(tiny, manner):
    asked = [request(ids, f"{row}", max_tokens=24, **MANNERS[manner]) for row, ids in enumerate(PROMPTS)]
    whole = answers(tiny, asked)
    again = [
        behind(one, answer, 1 + 7 * row) for row, (one, answer) in enumerate(zip(asked, whole, strict=True))
    ]
    for expected, answer in zip(whole, answers(tiny, again), strict=True):
        assert answer.token_ids.tolist() == expected.token_ids.tolist()
        assert apart(answer.logprobs, expected.logprobs) < 1e-4
        assert answer.finish_reason is FinishReason.LENGTH


def test_the_prefix_keeps_its_log_probs_and_versions_and_the_rest_gets_its_own(tiny):
    one = request(PROMPTS[0], temperature=0.0)
    [whole] = answers(tiny, [one])
    prefix = replace(
        beginning(sampled_part(whole), 5),
        logprobs=np.full(5, -9.0, np.float32),
        policy_steps=np.array([3, 3, 3, 4, 4], np.int32),
        incarnation=2,
    )
    [answer] = answers(tiny, [replace(one, prefix=prefix)], version=PolicyVersion(2, 7))
    assert shared_tokens(sampled_part(answer), prefix) == 5
    assert answer.policy_steps.tolist() == [3, 3, 3, 4, 4] + [7] * 7
    assert answer.incarnation == 2
    assert apart(answer.logprobs[5:], whole.logprobs[5:]) < 1e-4


def test_a_stop_string_that_begins_in_the_prefix_ends_the_answer(tiny_model):
    loaded = endless(tiny_model)
    one = request(PROMPTS[0], temperature=0.0, max_tokens=30)
    [whole] = answers(loaded, [one])
    texts = [loaded.tokenizer.decode(whole.token_ids[: count + 1]) for count in range(30)]
    place = next(
        at
        for at in range(4, 25)
        if texts[at].startswith(texts[at - 1]) and len(texts[at]) > len(texts[at - 1])
    )
    stop = texts[place][len(texts[place - 2]) - 1 : len(texts[place - 1]) + 1]
    stopping = replace(one, sampling=replace(one.sampling, stop=(stop,)))
    [expected] = answers(loaded, [stopping])
    assert expected.finish_reason is FinishReason.STOP
    count = expected.num_tokens - 1  # all but the token that completes it
    [answer] = answers(loaded, [replace(stopping, prefix=beginning(sampled_part(expected), count))])
    assert answer.token_ids.tolist() == expected.token_ids.tolist()
    assert answer.finish_reason is FinishReason.STOP


def test_tokens_are_told_while_they_are_made_and_of_a_failed_answer_only_its_own_are_lost(tiny):
    async def work(engine):
        told = []

        def fault(module, arguments):
            if len(told) >= 3:
                hook.remove()
                raise ValueError("out of memory")

        hook = tiny.model.register_forward_pre_hook(fault)
        first = request(PROMPTS[0], "first", max_tokens=20_000)
        with pytest.raises(BackendUnavailable, match="out of memory") as caught:
            await engine.generate(first, told.append)
        await engine.logprobs(np.arange(3))  # the engine has shown itself that it still reads
        prefix = joined(told)
        assert 0 < prefix.num_tokens <= caught.value.lost_tokens

        def broken(module, arguments):
            again.remove()
            raise ValueError("once more")

        again = tiny.model.register_forward_pre_hook(broken)
        with pytest.raises(BackendUnavailable, match="once more") as caught:
            await engine.generate(replace(first, request_id="second", prefix=prefix), told.append)
        assert caught.value.lost_tokens == 0
        return prefix

    prefix = run(tiny, work)
    assert np.isfinite(prefix.logprobs).all()
    assert prefix.first_token_s >= prefix.start_s > 0


def test_what_is_told_is_the_beginning_of_the_answer_also_over_new_weights(tiny):
    async def work(engine):
        told = []
        asking = asyncio.ensure_future(engine.generate(request(PROMPTS[0], max_tokens=20_000), told.append))
        await until(lambda: len(told) > 1)
        engine._decoder.call(lambda: engine._decoder.restart(PolicyVersion(0, 1)))
        await until(lambda: told[-1].policy_steps[-1] == 1)
        await engine.abort(["request"])
        return told, await asking

    told, answer = run(tiny, work)
    whole = joined(told)
    assert shared_tokens(whole, sampled_part(answer)) == whole.num_tokens
    assert set(answer.policy_steps) == {0, 1}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "llava"
    save_tiny_vision(folder)
    [picture] = save_pictures(folder / "pictures", 1)
    processor = AutoProcessor.from_pretrained(folder)
    with Image.open(picture) as image:
        made = processor(text=f"{MARK}say it", images=image, return_tensors="pt")
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return model, made["input_ids"][0].tolist(), {"pixel_values": made["pixel_values"].numpy()}


def test_an_answer_about_an_image_goes_on_with_the_image(seeing):
    model, ids, inputs = seeing
    loaded = loaded_model(model)
    one = request(ids, "seeing", inputs=inputs, temperature=0.0)
    blind = replace(
        one, prompt=replace(one.prompt, model_inputs={"pixel_values": 0 * inputs["pixel_values"]})
    )
    [whole] = answers(loaded, [one])
    [answer] = answers(loaded, [behind(one, whole, 5)])
    assert answer.token_ids.tolist() == whole.token_ids.tolist()
    assert apart(answer.logprobs, whole.logprobs) < 1e-4
    [other] = answers(loaded, [behind(blind, whole, 5)])
    assert apart(other.logprobs[5:], whole.logprobs[5:]) > 1e-3
