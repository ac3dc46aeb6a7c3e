"""The model of `swift-rlx store generate`: prompts as training encodes them, and workers for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration import candidate_model
from swift_rlx.integration.candidate_model import CandidateModel, WorkerPlan
from swift_rlx.integration.devices import Machine

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]
PROMPT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
PLAN = WorkerPlan("vllm", "bfloat16", workers=2, max_inflight=32, seed=4)


@pytest.fixture
def model(tiny_model):
    return CandidateModel(str(tiny_model), "chatml", model_type="llama")


@pytest.fixture
def four_cards(monkeypatch):
    monkeypatch.setattr(candidate_model, "this_machine", lambda use_cpu: Machine(tuple("4567"), 1))


def ids_of(model, text):
    return model._template.tokenizer.encode(text, add_special_tokens=False)


def test_a_prompt_ends_where_its_answer_begins(model):
    assert model.prompt(MESSAGES) == ids_of(model, PROMPT)
    assert (model.window, model.dtype) == (512, "float32")


def test_the_text_of_an_answer_lacks_what_only_ends_it(model):
    assert model.text(np.array(ids_of(model, "It is 4.<|im_end|>"))) == "It is 4."
    [end] = ids_of(model, "<|im_end|>")
    assert end in model.ends([]).token_ids
    assert model.ends(["It is"]).texts == ("It is",)


def test_no_prompt_is_longer_than_is_said_of_it(model):
    count = len(model.prompt(MESSAGES))
    assert count <= model.most_tokens(MESSAGES)
    assert model.num_tokens_over(MESSAGES, count) is None
    assert model.num_tokens_over(MESSAGES, count - 1) == count


def test_workers_share_all_accelerators(model, four_cards, tmp_path):
    plan = dataclasses.replace(PLAN, options={"tensor_parallel_size": 2, "max_model_len": 300})
    crew = model.crew(plan, 200, tmp_path)
    assert [spec.devices for spec in crew.specs] == [("4", "5"), ("6", "7")]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in crew.environments] == ["4,5", "6,7"]
    first = crew.specs[0]
    assert (first.name, first.dtype, first.max_inflight, first.seed) == ("vllm", "bfloat16", 32, 4)
    assert (first.max_model_len, first.options) == (300, {"tensor_parallel_size": 2})
    assert (first.model, first.loader) == (str(model.folder), None)
    with pytest.raises(
        ConfigError, match=r"--workers 5 of 1 accelerator\(s\) each are refused: 4 are visible"
    ):
        model.crew(dataclasses.replace(PLAN, workers=5), 200, tmp_path)


@pytest.mark.parametrize(("backend", "most"), [("vllm", 200), ("transformers", 512)])
def test_on_a_cpu_vllm_takes_memory_for_the_longest_text_that_there_is(model, tmp_path, backend, most):
    crew = model.crew(dataclasses.replace(PLAN, backend=backend), 200, tmp_path)
    assert [(spec.max_model_len, spec.devices, spec.memory_share) for spec in crew.specs] == [
        (most, (), 0.5)
    ] * 2


def test_a_backend_that_is_named_is_taken(model):
    assert model.backend("transformers") == "transformers"
    assert model.backend("module:function") == "module:function"
