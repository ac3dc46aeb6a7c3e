"""Models with other caches, and models that see: their answers against a forward without a cache."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import IMAGE, KINDS, VOCABULARY, tiny_llava, tiny_of, tiny_qwen2_vl
from transformers_runs import (
    PausedModel,
    apart,
    engine_of,
    loaded_model,
    logits,
    logprobs,
    request,
    run,
    save_full,
)

from swift_rlx.errors import BackendUnavailable, ConfigError
from swift_rlx.types import PolicyVersion

FAST = ["Mistral", "Mamba"]
REFUSED = ["RecurrentGemma"]


async def staggered(engine, model):
    """Answers of many lengths to prompts of many lengths, the last of which come while the first are made."""
    asked = []
    for row in range(8):
        ids = 3 + np.random.default_rng(row // 2).integers(0, VOCABULARY - 3, 3 + 5 * (row // 2))
        asked.append(request(ids, f"{row}", seed=row, temperature=0.8, max_tokens=8 + 3 * (row % 5)))
    paused = PausedModel(model, at=6)
    first = [asyncio.ensure_future(engine.generate(each)) for each in asked[:5]]
    await paused.reached()
    later = [asyncio.ensure_future(engine.generate(each)) for each in asked[5:]]
    await paused.go()
    return asked, await asyncio.gather(*first, *later)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in FAST else [pytest.mark.slow])
        for kind in KINDS
        if kind not in REFUSED
    ],
)
def test_every_kind_of_cache_gives_the_log_probs_of_a_plain_forward(kind):
    model = tiny_of(kind).eval()
    asked, answers = run(loaded_model(model), lambda engine: staggered(engine, model))
    for one, answer in zip(asked, answers, strict=True):
        assert answer.num_tokens == one.sampling.max_tokens
        assert apart(answer.logprobs, logprobs(model, one, answer, 0.8)) < 1e-4
        assert apart(answer.logprobs, logprobs(model, one, answer, 1.0)) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_keeps_its_state_in_itself_is_refused(kind):
    with pytest.raises(ConfigError, match=f"'{kind}ForCausalLM' is refused: it keeps its state in itself"):
        engine_of(loaded_model(tiny_of(kind)))


def llava_prompts():
    images = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    text = [5, 6, *[IMAGE] * 4, 7, 8, 9]
    return [
        (text, {"pixel_values": images[:1]}),
        (text, {"pixel_values": images[1:2]}),  # the same ids, another image
        ([11, *text, *text], {"pixel_values": images[2:]}),
        ([12, 13, 14], {}),
    ]


def qwen_prompts():
    generator = np.random.default_rng(0)
    prompts = [([12, 13, 14], {})]
    for heights in ([4], [8], [4, 6]):
        ids, patches = [5, 6], 0
        for height in heights:
            ids += [101, *[IMAGE] * height, 102, 7]
            patches += height * 4
        inputs = {
            "pixel_values": generator.normal(size=(patches, 3 * 2 * 4 * 4)).astype(np.float32),
            "image_grid_thw": np.array([[1, height, 4] for height in heights]),
            "mm_token_type_ids": (np.array([ids]) == IMAGE).astype(np.int64),
        }
        prompts.append((ids, inputs))
    return prompts


@torch.no_grad()
def plain(model, one, answer, temperature=1.0):
    """As `logprobs`, with the images. A token of the answer that stands for an image has none and is read as text:
    it gets its embedding after the images were filled in."""
    inputs = {name: torch.tensor(array) for name, array in one.prompt.model_inputs.items()}
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.nn.functional.pad(
            inputs["mm_token_type_ids"], (0, answer.num_tokens)
        )
    hidden = answer.token_ids == IMAGE
    shown = replace(answer, token_ids=np.where(hidden, 3, answer.token_ids))
    embedding = model.get_input_embeddings()
    number = len(one.prompt.token_ids) + np.flatnonzero(hidden)

    def read_as_text(module, arguments, embedded):
        if embedded.shape[1] == len(one.prompt.token_ids) + answer.num_tokens:
            embedded[0, number] = embedding.weight[IMAGE]

    hook = embedding.register_forward_hook(read_as_text)
    scores = (logits(model, one, shown, **inputs) / temperature).log_softmax(-1)
    hook.remove()
    return scores.gather(1, torch.tensor(answer.token_ids).long()[:, None])[:, 0].numpy()


@pytest.mark.parametrize(
    ("make", "prompts"),
    [(tiny_llava, llava_prompts), pytest.param(tiny_qwen2_vl, qwen_prompts, marks=pytest.mark.slow)],
)
def test_images_are_seen_and_stay_seen_when_weights_change_in_mid_answer(tmp_path, make, prompts):
    model, old, new = make().eval(), make().eval(), make(seed=1).eval()
    files = save_full(new, tmp_path / "files")
    asked = [
        request(ids, f"{number}.{member}", inputs, seed=member, temperature=0.8, max_tokens=14)
        for number, (ids, inputs) in enumerate(prompts())
        for member in range(2)
    ]

    async def work(engine):
        paused = PausedModel(model, at=10)
        flying = [asyncio.ensure_future(engine.generate(each)) for each in asked]
        await paused.reached()
        publishing = asyncio.ensure_future(engine.publish(PolicyVersion(0, 1), files))
        await paused.go()
        await publishing
        return await asyncio.gather(*flying)

    answers = run(loaded_model(model), work)
    for one, answer in zip(asked, answers, strict=True):
        steps = answer.policy_steps
        assert set(steps.tolist()) == {0, 1}
        expected = np.where(steps == 0, plain(old, one, answer, 0.8), plain(new, one, answer, 0.8))
        assert apart(answer.logprobs, expected) < 1e-4
    assert any(IMAGE in answer.token_ids[:-1] for answer in answers)
    if make is tiny_llava:  # another image gives another answer
        swapped = replace(asked[0], prompt=asked[2].prompt)
        assert apart(plain(old, asked[0], answers[0], 0.8), plain(old, swapped, answers[0], 0.8)) > 0.05


def test_images_that_do_not_fit_their_prompt_fail_alone():
    model = tiny_llava().eval()
    (ids, inputs), *_, (text, _) = llava_prompts()

    async def work(engine):
        bad = engine.generate(request(ids[:3] + ids[5:], "bad", inputs))
        good = engine.generate(request(text, "good"))
        return await asyncio.gather(bad, good, return_exceptions=True)

    bad, good = run(loaded_model(model), work)
    assert isinstance(bad, BackendUnavailable)
    assert "the model failed with" in str(bad)
    assert good.num_tokens == 12
