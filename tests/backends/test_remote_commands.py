"""The command that a message gives: its flags exist, and a server that it starts has what was asked for."""

from __future__ import annotations

import shlex

import pytest

from swift_rlx.backends.remote_commands import start_command
from swift_rlx.backends.remote_dialect import ServerKind
from swift_rlx.backends.remote_endpoint import parse_endpoints
from swift_rlx.backends.weights import WeightKind

HERE = parse_endpoints(["http://127.0.0.1:8765"])[0]
TRANSFER = ["--weight-transfer-config", '{"backend":"rlx_file"}']


def command(kind: ServerKind, *weights: WeightKind, model: str = "a model", **options: object) -> list[str]:
    return shlex.split(start_command(kind, HERE, model, weights, **options))  # type: ignore[arg-type]


def test_a_vllm_for_adapters_needs_no_development_mode() -> None:
    words = command(ServerKind.VLLM, WeightKind.ADAPTER, max_adapter_rank=20)
    assert words[0] == "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    assert words[1:7] == [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "a model",
        "--host",
    ]
    assert "VLLM_SERVER_DEV_MODE=1" not in words
    assert {"--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-lora"} <= {*words}
    assert words[words.index("--max-lora-rank") + 1] == "32", "a rank that vLLM has room for"
    assert TRANSFER[0] not in words


def test_a_vllm_for_all_weights_needs_our_transfer() -> None:
    words = command(ServerKind.VLLM, WeightKind.FULL)
    assert words[0] == "VLLM_SERVER_DEV_MODE=1"
    assert words[-2:] == TRANSFER
    assert "--enable-lora" not in words


@pytest.mark.parametrize("kind", ServerKind)
def test_the_key_is_taken_from_the_variable_and_not_written_down(kind: ServerKind) -> None:
    text = start_command(kind, HERE, "model", has_key=True)
    assert '"$SWIFT_RLX_API_KEY"' in text
    assert "KEY" not in start_command(kind, HERE, "model")


def test_an_sglang_is_told_its_adapters() -> None:
    words = command(ServerKind.SGLANG, *WeightKind)
    assert words[:4] == ["python", "-m", "sglang.launch_server", "--model-path"]
    assert words[-5:] == ["--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", "all"]
    assert "--enable-lora" not in command(ServerKind.SGLANG, WeightKind.FULL)


def test_a_cpu_build_is_told_its_memory_and_to_leave_other_plugins_alone() -> None:
    words = command(ServerKind.VLLM, WeightKind.FULL, on_cpu=True)
    assert words[:3] == ["VLLM_SERVER_DEV_MODE=1", "VLLM_PLUGINS=rlx", "VLLM_CPU_KVCACHE_SPACE=1"]
    assert not any("VLLM_PLUGINS" in word for word in command(ServerKind.VLLM, *WeightKind))
    assert not any("VLLM" in word for word in command(ServerKind.SGLANG, *WeightKind, on_cpu=True))
