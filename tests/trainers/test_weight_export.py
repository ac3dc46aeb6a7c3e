"""The files that are published hold the policy, and reading it leaves the trainer as it was."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import runs
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from swift_rlx.backends.weights import WeightFiles, WeightKind
from swift_rlx.errors import BackendError, ConfigError
from swift_rlx.trainers import weight_choice, weight_export
from swift_rlx.trainers.weight_export import WeightExporter

TUNERS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "lora-bias": {"lora_bias": "all"},
    "modules-to-save": {"modules_to_save": ["norm"]},
    "full": {"tuner_type": "full"},
}
TOKENS = torch.arange(10, 40)[None]


def varied(completions: list[str], row: list[int], **_: Any) -> list[float]:
    return [len(set(text)) / 10 + 0.01 * number for text, number in zip(completions, row, strict=True)]


@pytest.fixture
def trained(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """The trainer of a short run."""

    def run(**options: Any) -> Any:
        name = options.pop("name", "run")
        options = {"rlhf_type": "grpo", "reward_funcs": [varied], **options}
        return runs.train(tiny_model, write_rows(), tmp_path / name, **options)

    return run


def refuses_all(config: dict[str, Any], max_rank: int) -> str:
    assert max_rank == 4
    return "this engine loads no adapter of type " + config["peft_type"]


@pytest.fixture
def without_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_choice, "adapter_fault_of", lambda engine: refuses_all)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


def read(files: WeightFiles) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in sorted(Path(files.directory).glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def served(files: WeightFiles, base: Path) -> torch.nn.Module:
    """A fresh model that was given the files, loaded by what a worker may use."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if files.kind is WeightKind.ADAPTER:
        return peft.PeftModel.from_pretrained(model, files.directory)
    tensors = read(files)
    assert set(tensors) == {name for name, _ in model.named_parameters()}
    model.load_state_dict(tensors, strict=False)
    return model


def export(trainer: Any, folder: Path, **options: Any) -> WeightFiles:
    folder.mkdir()
    return WeightExporter(trainer, "transformers", max_adapter_rank=4, **options).export(folder)


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize("tuner", TUNERS)
def test_a_model_that_is_given_the_files_is_the_policy(
    tuner: str, trained: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    trainer = trained(**TUNERS[tuner])
    files = export(trainer, tmp_path / "weights")

    assert files.kind is (WeightKind.FULL if tuner == "full" else WeightKind.ADAPTER)
    model = served(files, tiny_model)
    assert torch.equal(logits(model), logits(trainer.model))
    start = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    assert (logits(start) - logits(model)).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize("tuner", [name for name in TUNERS if name != "full"])
def test_an_adapter_that_the_engine_cannot_load_is_merged_outside_of_the_model(
    tuner: str,
    trained: Callable[..., Any],
    tiny_model: Path,
    tmp_path: Path,
    without_adapters: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_export.logger, "propagate", True)
    trainer = trained(**TUNERS[tuner])
    before = snapshot(trainer.model)
    exporter = WeightExporter(trainer, "transformers", max_adapter_rank=4)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        files = exporter.export(tmp_path / str(number))

    assert files.kind is WeightKind.FULL
    torch.testing.assert_close(logits(served(files, tiny_model)), logits(trainer.model), rtol=0, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())
    (said,) = {line for line in caplog.messages if "published to transformers" in line}
    assert "merged in a copy, because this engine loads no adapter of type LORA" in said


@pytest.mark.slow
def test_nothing_drifts_in_bfloat16(
    trained: Callable[..., Any], tiny_model: Path, tmp_path: Path, without_adapters: None
) -> None:
    trainer = trained(torch_dtype="bfloat16", bf16=True)
    before = snapshot(trainer.model)
    exporter = WeightExporter(trainer, "transformers", max_adapter_rank=4)
    (tmp_path / "first").mkdir()
    first = read(exporter.export(tmp_path / "first"))
    for number in range(49):
        (tmp_path / str(number)).mkdir()
        files = exporter.export(tmp_path / str(number))

    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert all(torch.equal(first[name], tensor) for name, tensor in read(files).items())
    base = {name: value.bfloat16() for name, value in load_file(tiny_model / "model.safetensors").items()}
    changed = {name for name, tensor in first.items() if not torch.equal(base[name], tensor)}
    assert changed == {name for name in base if "proj" in name}
    assert {tensor.dtype for tensor in first.values()} == {torch.bfloat16}
    assert exporter.make_probe().tolerance == 1.0


@pytest.mark.slow
def test_the_probe_is_what_a_plain_forward_pass_of_the_served_model_says(
    trained: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    trainer = trained(lora_dropout=0.5)
    trainer.model.train()
    files = export(trainer, tmp_path / "weights")

    assert trainer.model.training
    ids = torch.as_tensor(files.probe.token_ids, dtype=torch.long)
    assert 32 <= len(ids) <= 64
    assert set(trainer.tokenizer.all_special_ids).isdisjoint(ids.tolist())
    with torch.no_grad():
        rows = torch.log_softmax(served(files, tiny_model).eval()(input_ids=ids[None]).logits[0], -1)
        start = torch.log_softmax(served_start(tiny_model)(input_ids=ids[None]).logits[0], -1)
    assert files.probe.difference(picked(rows, ids)) < 1e-5
    assert files.probe.difference(picked(start, ids)) > 100 * files.probe.tolerance
    other = WeightExporter(trainer, "transformers", max_adapter_rank=4).make_probe()
    assert np.array_equal(other.token_ids, files.probe.token_ids)


def served_start(base: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


def picked(logprobs: torch.Tensor, ids: torch.Tensor) -> np.ndarray:
    return logprobs[:-1].gather(1, ids[1:, None])[:, 0].numpy()


@pytest.mark.slow
def test_a_run_from_an_earlier_adapter_publishes_base_and_adapter_at_once(
    trained: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    trained(name="earlier", save_strategy="steps", save_steps=2)
    earlier = tmp_path / "earlier" / "checkpoint-2"
    trainer = trained(name="later", adapters=[str(earlier)], learning_rate=0.0)
    model = served(export(trainer, tmp_path / "weights"), tiny_model)

    expected = peft.PeftModel.from_pretrained(served_start(tiny_model), earlier)
    torch.testing.assert_close(logits(model), logits(expected), rtol=0, atol=1e-6)
    assert (logits(model) - logits(served_start(tiny_model))).abs().max() > 0.1


@pytest.mark.slow
def test_an_initialization_that_changes_the_base_is_published_with_the_base(
    trained: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    trainer = trained(init_weights="pissa")
    files = export(trainer, tmp_path / "weights")

    assert files.kind is WeightKind.FULL
    torch.testing.assert_close(logits(served(files, tiny_model)), logits(trainer.model), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_large_models_go_into_several_files_in_the_engines_type(
    trained: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trained(tuner_type="full")
    monkeypatch.setattr(weight_export, "GROUP_BYTES", 40_000)
    files = export(trainer, tmp_path / "weights", dtype=torch.bfloat16)

    paths = sorted(path.name for path in Path(files.directory).iterdir())
    # the embedding, two layers, the last norm
    assert paths == [f"model-0000{number}.safetensors" for number in (1, 2, 3, 4)]
    sizes = [
        sum(tensor.nbytes for tensor in load_file(tmp_path / "weights" / name).values()) for name in paths
    ]
    exporter = WeightExporter(trainer, "transformers", dtype=torch.bfloat16)
    assert sum(sizes) == exporter.bytes_needed()
    assert max(sizes) <= 40_000 / 2
    tensors = read(files)
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(tensors[name], parameter.detach().bfloat16())


@pytest.mark.slow
def test_the_adapter_file_is_as_large_as_said_and_its_config_is_that_of_peft(
    trained: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = trained(modules_to_save=["norm"])
    exporter = WeightExporter(trainer, "transformers")
    files = exporter.export(tmp_path)

    tensors = read(files)
    assert exporter.bytes_needed() == sum(tensor.nbytes for tensor in tensors.values())
    assert exporter.bytes_needed() < exporter.last.nbytes < exporter.bytes_needed() + 20_000
    assert 0 < exporter.last.probe_s < exporter.last.seconds
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in tensors
    assert "base_model.model.model.norm.weight" in tensors
    config = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["peft_type"], config["r"], config["inference_mode"]) == ("LORA", 4, True)


@pytest.mark.slow
def test_what_cannot_be_published_is_refused_at_the_start(
    trained: Callable[..., Any], without_adapters: None
) -> None:
    trainer = trained(tuner_type="adapter")
    with pytest.raises(ConfigError, match="tuner 'adapter' of ms-swift cannot be given to rollout workers"):
        WeightExporter(trainer, "transformers")


@pytest.mark.slow
def test_a_full_disk_is_said_with_its_reason(
    trained: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    exporter = WeightExporter(trained(tuner_type="full"), "transformers")
    monkeypatch.setattr(weight_export, "save_file", full)
    with pytest.raises(BackendError, match=r"could not be written to .*No space left on device"):
        exporter.export(tmp_path)
    monkeypatch.undo()
    assert exporter.export(tmp_path).kind is WeightKind.FULL


@pytest.mark.slow
def test_a_quantized_base_is_refused_where_it_would_have_to_be_merged(
    trained: Callable[..., Any], without_adapters: None
) -> None:
    trainer = trained()
    layer = trainer.model.get_base_model().model.layers[0].mlp.up_proj.get_base_layer()
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ConfigError, match=r"base model is quantized \(.*up_proj.*float8_e4m3fn\)"):
        WeightExporter(trainer, "transformers", max_adapter_rank=4)


@pytest.mark.slow
def test_prompt_tuning_is_refused(trained: Callable[..., Any]) -> None:
    trainer = trained(tuner_type="full")
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    trainer.model = peft.get_peft_model(trainer.model, config)
    with pytest.raises(ConfigError, match="PROMPT_TUNING adapter cannot be merged"):
        WeightExporter(trainer, "transformers")


def mixture_of_experts() -> Any:
    from transformers import Qwen3MoeConfig

    sizes = {"hidden_size": 32, "moe_intermediate_size": 16, "num_attention_heads": 4, "head_dim": 8}
    return Qwen3MoeConfig(
        vocab_size=90,
        num_hidden_layers=2,
        num_experts=4,
        num_experts_per_tok=2,
        num_key_value_heads=2,
        **sizes,
    )


def vision_language() -> Any:
    from transformers import Qwen2_5_VLConfig

    text = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    sight = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
    return Qwen2_5_VLConfig(
        text_config={**text, "vocab_size": 90, "num_hidden_layers": 2, "rope_parameters": rope},
        vision_config={**sight, "fullatt_block_indexes": [0]},
        **{f"{name}_token_id": 80 + place for place, name in enumerate(["image", "video", "vision_start"])},
    )


@pytest.mark.slow
@pytest.mark.parametrize("make_config", [mixture_of_experts, vision_language])
def test_vllm_gets_the_names_and_shapes_of_checkpoints_and_transformers_those_of_its_model(
    make_config: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sharded_export import stand_in
    from transformers import AutoModelForImageTextToText

    kind = AutoModelForCausalLM if make_config is mixture_of_experts else AutoModelForImageTextToText
    kind.from_config(make_config()).save_pretrained(tmp_path / "base")
    model = kind.from_pretrained(tmp_path / "base", dtype=torch.float32)
    monkeypatch.setattr(weight_export, "GROUP_BYTES", 20_000)
    files = {}
    for engine in ("vllm", "transformers"):
        (tmp_path / engine).mkdir()
        files[engine] = read(WeightExporter(stand_in(model), engine).export(tmp_path / engine))

    saved = load_file(tmp_path / "base" / "model.safetensors")
    assert set(files["vllm"]) == set(saved)
    assert all(torch.equal(files["vllm"][name], saved[name]) for name in saved)
    assert set(files["transformers"]) == {name for name, _ in model.named_parameters()} != set(saved)
    assert len(list((tmp_path / "vllm").iterdir())) > 3
