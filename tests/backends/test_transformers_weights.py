"""Weights published to the transformers engine: what is served, what goes on under them, what is refused."""

from __future__ import annotations

import asyncio
import copy
import threading

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers_runs import PROMPTS, PausedModel, apart, endless, logprobs, request, run, save_full

from swift_rlx.backends import WeightFiles, WeightKind, transformers_weights
from swift_rlx.errors import BackendRejected, WorkerDied
from swift_rlx.types import FinishReason, PolicyVersion

TEXT = np.arange(30, 50, dtype=np.int32)
ADAPTERS = {
    "lora": {"target_modules": ["q_proj", "v_proj", "down_proj"]},
    "dora": {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "bias": {"target_modules": ["q_proj"], "lora_bias": True},
    "whole modules": {"target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head"]},
}


@pytest.fixture
def tiny(tiny_model):
    return endless(tiny_model)


def moved(model, seed, scale=0.05):
    """A copy with other weights; what is tied stays tied."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in other.parameters():
            value.add_(torch.randn_like(value) * scale)
    return other


def adapted(model, seed, **config):
    """A peft model on a copy of the model, with weights that are not those of the start."""
    peft_model = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, task_type="CAUSAL_LM", **config)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in peft_model.parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) * 0.2)
    return peft_model.requires_grad_(False)


def saved(peft_model, folder):
    peft_model.save_pretrained(str(folder), save_embedding_layers=False)
    return WeightFiles(WeightKind.ADAPTER, str(folder))


@torch.no_grad()
def of_text(model):
    ids = torch.tensor(TEXT).long()[None]
    return model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()


def served(loaded, *files):
    """Log-probs of the text after each of the weights, published in turn as steps 1, 2, ..."""

    async def work(engine):
        found = []
        for step, each in enumerate(files, 1):
            await engine.publish(PolicyVersion(0, step), each)
            assert (await engine.health()).version == PolicyVersion(0, step)
            found.append(await engine.logprobs(TEXT))
        return found

    return run(loaded, work)


def test_full_weights_are_served_the_tied_ones_too(tiny, tmp_path):
    assert tiny.model.lm_head.weight is tiny.model.model.embed_tokens.weight
    models = [moved(tiny.model, seed) for seed in (1, 2)]
    files = [save_full(model, tmp_path / f"{step}", shards=2) for step, model in enumerate(models)]
    before = of_text(tiny.model)
    first, second = served(tiny, *files)
    assert apart(first, of_text(models[0])) < 1e-5
    assert apart(second, of_text(models[1])) < 1e-5
    assert apart(first, before) > 0.1
    assert apart(second, first) > 0.1
    assert tiny.model.lm_head.weight is tiny.model.model.embed_tokens.weight


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings", "ignore:`lora_bias")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "bias" else []) for kind in ADAPTERS]
)
def test_adapters_are_served_one_after_the_other(tiny, tmp_path, kind):
    models = [adapted(tiny.model, seed, **ADAPTERS[kind]) for seed in (1, 2)]
    files = [saved(model, tmp_path / f"{step}") for step, model in enumerate(models)]
    before = of_text(tiny.model)
    first, second = served(tiny, *files)
    assert apart(first, of_text(models[0])) < 1e-4
    assert apart(second, of_text(models[1])) < 1e-4
    assert apart(first, before) > 0.1
    assert apart(second, first) > 0.1


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_an_adapter_of_another_kind_replaces_the_one_before(tiny, tmp_path):
    models = [adapted(tiny.model, 1, **ADAPTERS["whole modules"]), adapted(tiny.model, 2, **ADAPTERS["dora"])]
    files = [saved(model, tmp_path / f"{step}") for step, model in enumerate(models)]
    assert apart(served(tiny, *files)[1], of_text(models[1])) < 1e-4


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_full_weights_take_the_place_of_an_adapter_and_no_adapter_comes_after_them(tiny, tmp_path):
    adapter = saved(adapted(tiny.model, 1, **ADAPTERS["whole modules"]), tmp_path / "adapter")
    model = moved(tiny.model, 3)
    full = save_full(model, tmp_path / "full")
    assert apart(served(tiny, adapter, full)[1], of_text(model)) < 1e-5
    with pytest.raises(BackendRejected, match="full weights have replaced those that it belongs to"):
        served(tiny, full, adapter)


@pytest.mark.parametrize("kind", [WeightKind.FULL, WeightKind.ADAPTER])
def test_answers_in_flight_go_on_under_new_weights_with_their_keys_and_values_computed_anew(
    tiny, tmp_path, kind
):
    old = copy.deepcopy(tiny.model)
    if kind is WeightKind.FULL:
        new = moved(tiny.model, 4)
        files = save_full(new, tmp_path / "files")
    else:
        new = adapted(tiny.model, 4, **ADAPTERS["lora"])
        files = saved(new, tmp_path / "files")
    asked = [
        request(PROMPTS[row % 2], f"{row}", seed=row, temperature=0.8, max_tokens=20 + row)
        for row in range(4)
    ]

    async def work(engine):
        paused = PausedModel(tiny.model, at=9)
        flying = [asyncio.ensure_future(engine.generate(each)) for each in asked]
        await paused.reached()
        publishing = asyncio.ensure_future(engine.publish(PolicyVersion(0, 7), files))
        await paused.go()
        await publishing
        return await asyncio.gather(*flying)

    for one, answer in zip(asked, run(tiny, work, version=PolicyVersion(0, 5)), strict=True):
        steps = answer.policy_steps
        assert steps.tolist() == sorted(steps.tolist())
        assert set(steps.tolist()) == {5, 7}
        assert answer.finish_reason is FinishReason.LENGTH
        by_old, by_new = logprobs(old, one, answer, 0.8), logprobs(new, one, answer, 0.8)
        expected = np.where(steps == 5, by_old, by_new)
        assert apart(answer.logprobs, expected) < 1e-4
        assert apart(by_old[steps == 7], by_new[steps == 7]) > 0.1


def test_a_request_after_publishing_is_of_the_new_weights_alone(tiny, tmp_path):
    model = moved(tiny.model, 5)
    files = save_full(model, tmp_path / "files")

    async def work(engine):
        before = await engine.generate(request(PROMPTS[1], seed=1))
        await engine.publish(PolicyVersion(0, 1), files)
        return before, await engine.generate(request(PROMPTS[1], seed=1))

    before, after = run(tiny, work)
    assert set(before.policy_steps) == {0}
    assert set(after.policy_steps) == {1}
    assert apart(after.logprobs, logprobs(model, request(PROMPTS[1]), after)) < 1e-4


def test_full_weights_that_do_not_fit_are_refused_by_name_and_change_nothing(tiny, tmp_path):
    before = of_text(tiny.model)
    good = load_file(save_full(moved(tiny.model, 6), tmp_path / "good").directory + "/0.safetensors")
    norm, key = "model.norm.weight", "model.layers.0.self_attn.k_proj.weight"
    cases = {
        f"{norm} missing": {name: value for name, value in good.items() if name != norm},
        "model.nothing.weight unknown": {**good, "model.nothing.weight": torch.zeros(2)},
        rf"{key} \[3, 32\] instead of \[16, 32\] of another shape": {**good, key: torch.zeros(3, 32)},
        "model.embed_tokens.weight missing": {k: v for k, v in good.items() if "embed" not in k},
    }

    async def work(engine):
        for number, (message, tensors) in enumerate(cases.items()):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            save_file(tensors, folder / "weights.safetensors")
            with pytest.raises(BackendRejected, match=message):
                await engine.publish(PolicyVersion(0, 1), WeightFiles(WeightKind.FULL, str(folder)))
        with pytest.raises(BackendRejected, match=r"there is no \*.safetensors in it"):
            await engine.publish(PolicyVersion(0, 1), WeightFiles(WeightKind.FULL, str(tmp_path / "none")))
        with pytest.raises(BackendRejected, match="weights of type 'dict' are refused"):
            await engine.publish(PolicyVersion(0, 1), {})
        assert (await engine.health()).version == PolicyVersion(0, 0)
        return await engine.logprobs(TEXT)

    assert apart(run(tiny, work), before) < 1e-6


def test_a_tied_parameter_may_go_by_its_other_name(tiny, tmp_path):
    model = moved(tiny.model, 7)
    folder = save_full(model, tmp_path / "files").directory
    tensors = load_file(f"{folder}/0.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, f"{folder}/0.safetensors")
    assert apart(served(tiny, WeightFiles(WeightKind.FULL, folder))[0], of_text(model)) < 1e-5


def test_an_adapter_that_does_not_fit_is_refused_by_name_and_changes_nothing(tiny, tmp_path):
    before = of_text(tiny.model)
    adapter = saved(adapted(tiny.model, 1, **ADAPTERS["lora"]), tmp_path / "adapter")
    weights = f"{adapter.directory}/adapter_model.safetensors"
    tensors = load_file(weights)
    lost = next(iter(tensors))

    async def work(engine):
        save_file({name: value for name, value in tensors.items() if name != lost}, weights)
        with pytest.raises(BackendRejected, match=f"{lost} missing"):
            await engine.publish(PolicyVersion(0, 1), adapter)
        assert apart(await engine.logprobs(TEXT), before) < 1e-6
        save_file({**tensors, "model.other": torch.zeros(2)}, weights)
        with pytest.raises(BackendRejected, match=r"model\.other unknown"):
            await engine.publish(PolicyVersion(0, 1), adapter)
        (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
        with pytest.raises(BackendRejected, match=r"it has no adapter_model.safetensors"):
            await engine.publish(PolicyVersion(0, 1), adapter)
        return await engine.logprobs(TEXT)

    assert apart(run(tiny, work), before) < 1e-6


def test_an_adapter_that_adds_tokens_to_the_prompt_is_refused(tiny, tmp_path):
    from peft import PromptTuningConfig

    config = PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    files = saved(get_peft_model(copy.deepcopy(tiny.model), config), tmp_path / "prompt")
    with pytest.raises(BackendRejected, match="PROMPT_TUNING adds tokens to the prompt"):
        served(tiny, files)


def test_an_error_in_the_middle_of_copying_is_the_end_of_the_engine(tiny, tmp_path, monkeypatch):
    files = save_full(moved(tiny.model, 8), tmp_path / "files", shards=2)
    loads = []

    def fails_at_the_second(path):
        loads.append(path)
        if len(loads) == 2:
            raise OSError("gone")
        return load_file(path)

    async def work(engine):
        paused = PausedModel(tiny.model, at=3)
        flying = asyncio.ensure_future(engine.generate(request(PROMPTS[0], max_tokens=400)))
        await paused.reached()
        publishing = asyncio.ensure_future(engine.publish(PolicyVersion(0, 1), files))
        await paused.go()
        with pytest.raises(WorkerDied, match=r"publish 0\.1 failed midway with OSError: gone"):
            await publishing
        with pytest.raises(WorkerDied, match=r"publish 0\.1 failed midway"):
            await flying
        for call in (
            engine.health(),
            engine.generate(request(PROMPTS[0])),
            engine.logprobs(TEXT),
            engine.publish(PolicyVersion(0, 2), files),
        ):
            with pytest.raises(WorkerDied, match="cannot serve: a publish failed midway"):
                await call

    monkeypatch.setattr("swift_rlx.backends.transformers_weights.load_file", fails_at_the_second)
    run(tiny, work)


@pytest.mark.parametrize("kind", list(WeightKind), ids=lambda one: one.value)
def test_what_is_asked_while_weights_are_being_replaced_waits_for_them(tiny, tmp_path, kind, monkeypatch):
    if kind is WeightKind.FULL:
        target, files = "load_file", save_full(moved(tiny.model, 1), tmp_path / "full")
    else:
        target, files = (
            "set_peft_model_state_dict",
            saved(adapted(tiny.model, 1, **ADAPTERS["lora"]), tmp_path / "lora"),
        )
    name = f"swift_rlx.backends.transformers_weights.{target}"
    midway, go, real = threading.Event(), threading.Event(), getattr(transformers_weights, target)

    def slow(*args):
        midway.set()
        assert go.wait(30)
        return real(*args)

    monkeypatch.setattr(name, slow)

    async def work(engine):
        publishing = asyncio.ensure_future(engine.publish(PolicyVersion(0, 1), files))
        await asyncio.to_thread(midway.wait, 30)
        asked = [
            asyncio.ensure_future(call)
            for call in (engine.generate(request(PROMPTS[0])), engine.health(), engine.logprobs(TEXT))
        ]
        await asyncio.sleep(0)
        go.set()
        await publishing
        answer, health, _ = await asyncio.gather(*asked)
        assert health.version == PolicyVersion(0, 1)
        assert set(answer.policy_steps.tolist()) == {1}

    run(tiny, work)
