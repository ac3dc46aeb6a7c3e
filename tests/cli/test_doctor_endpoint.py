"""`swift-rlx doctor --endpoint URL`: what a server can do, what it lacks, and the command for one without a lack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in_server import StandIn
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm

from swift_rlx.backends.remote_dialect import ServerKind
from swift_rlx.backends.remote_endpoint import parse_endpoints
from swift_rlx.cli import endpoint_checks
from swift_rlx.cli.main import main

SECRET = "sk-3f9a77"


@contextlib.contextmanager
def listening(stand_in: StandIn) -> Iterator[StandIn]:
    """In a loop of its own, beside the command."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(stand_in.start(), loop).result(20)
        yield stand_in
    finally:
        asyncio.run_coroutine_threadsafe(stand_in.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def doctor(capsys: pytest.CaptureFixture[str], url: str) -> tuple[int, dict[str, dict[str, str]], str]:
    code = main(["doctor", "--json", "--endpoint", url])
    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"]
    main(["doctor", "--endpoint", url])
    return code, {one["name"]: one for one in report["sections"]["endpoint"]}, capsys.readouterr().out


def test_a_server_that_lacks_nothing_is_shown_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(StandInVllm(tmp_path)) as stand_in:
        code, checks, text = doctor(capsys, stand_in.endpoint.url)
    assert code == 0
    assert {check["status"] for check in checks.values()} == {"OK"}
    assert checks["server"]["detail"].startswith("vLLM 0.32.0 with ")
    assert f"--port {stand_in.port} --enable-scale-out" in checks["command"]["detail"]
    assert f"`--rollout_endpoints {stand_in.endpoint.url}` can be used\n" in text


def test_what_it_lacks_fails_where_nothing_else_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(StandInVllm(tmp_path, is_raw=True, dev_mode=False)) as stand_in:
        code, checks, text = doctor(capsys, stand_in.endpoint.url)
    assert code == 1
    statuses = {name: check["status"] for name, check in checks.items()}
    assert statuses["log-probs at the temperature"] == "FAIL"
    assert statuses["new weights while it runs"] == "WARN", "adapters are a way"
    assert (
        checks["log-probs at the temperature"]["remedy"] == "start it with --logprobs-mode processed_logprobs"
    )
    assert "cannot be used: log-probs at the temperature failed" in text


def test_without_any_way_to_new_weights_it_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(StandInVllm(tmp_path, runtime_lora=False, dev_mode=False)) as stand_in:
        code, checks, _ = doctor(capsys, stand_in.endpoint.url)
    failed = {name for name, check in checks.items() if check["status"] == "FAIL"}
    assert code == 1
    assert failed == {"LoRA adapters while it runs", "new weights while it runs"}


def test_an_sglang_is_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(StandInSglang(tmp_path)) as stand_in:
        code, checks, _ = doctor(capsys, stand_in.endpoint.url)
    assert code == 0
    assert checks["server"]["detail"].startswith("SGLang 0.5.9 with ")
    assert checks["LoRA adapters while it runs"]["detail"] == "yes, up to rank 8"
    assert checks["log-probs under top_p, top_k or min_p"]["status"] == "WARN"
    assert "sglang.launch_server" in checks["command"]["detail"]


def test_where_nobody_listens_it_gives_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, checks, _ = doctor(capsys, f"http://127.0.0.1:{port}")
    assert code == 1
    assert "connection refused" in checks["server"]["detail"]
    assert f"--model MODEL --host 127.0.0.1 --port {port}" in checks["server"]["remedy"]
    assert checks["proxy"]["detail"] == "HTTP_PROXY is set and not used: servers are reached directly"


@pytest.mark.parametrize(
    ("host", "accelerated", "version", "is_told"),
    [
        ("127.0.0.1", False, "", True),
        ("127.0.0.1", True, "0.32.0", False),
        ("gpu7", False, "0.32.0", False),
        ("gpu7", True, "0.32.0+cpu", True),
    ],
)
def test_the_command_for_a_cpu_build_is_given_where_one_is_there_or_installed_here(
    monkeypatch: pytest.MonkeyPatch, host: str, accelerated: bool, version: str, is_told: bool
) -> None:
    monkeypatch.setattr(endpoint_checks, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(endpoint_checks, "is_for_accelerators", lambda: accelerated)
    [endpoint] = parse_endpoints([f"http://{host}:8000"])
    command = endpoint_checks._command(ServerKind.VLLM, endpoint, "MODEL", None, version)
    assert ("VLLM_PLUGINS=rlx VLLM_CPU_KVCACHE_SPACE=1 " in command) is is_told


def test_the_key_is_sent_and_shown_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(StandInVllm(tmp_path, key=SECRET)) as stand_in:
        code, checks, text = doctor(capsys, stand_in.endpoint.url)
        assert code == 1
        assert "SWIFT_RLX_API_KEY has to hold its key" in checks["server"]["detail"]
        monkeypatch.setenv("SWIFT_RLX_API_KEY", SECRET)
        code, checks, text = doctor(capsys, stand_in.endpoint.url)
    assert code == 0
    assert SECRET not in text + json.dumps(checks)
    assert 'VLLM_API_KEY="$SWIFT_RLX_API_KEY"' in checks["command"]["detail"]


def test_what_is_no_address_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--endpoint", "gpu7:8000"]) == 2
    assert capsys.readouterr().err.startswith("swift-rlx: error: --rollout_endpoints 'gpu7:8000' is refused")
