"""Servers that are asked before the model is loaded: a wrong key or address is refused, one that is not up is not."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from runs import arguments

from swift_rlx.errors import ConfigError
from swift_rlx.integration.rollout_servers import refuse_unfit_servers

KEY = "sk-3f9a77"
MODELS = b'{"data": [{"id": "tiny", "owned_by": "vllm"}]}'


@contextlib.contextmanager
def listening(models: bytes = MODELS) -> Iterator[str]:
    """The address of a server that wants the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_let_in = self.headers["Authorization"] == f"Bearer {KEY}"
            self.send_response(200 if is_let_in else 401)
            self.end_headers()
            self.wfile.write(models if is_let_in else b'{"error": "Unauthorized"}')

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "status 401: Unauthorized; the variable SWIFT_RLX_API_KEY has to hold its key"),
        ("sk-other", "status 401: Unauthorized; the key in SWIFT_RLX_API_KEY is not the one that it wants"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_refused(
    key: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key is not None:
        monkeypatch.setenv("SWIFT_RLX_API_KEY", key)
    with listening() as url, pytest.raises(ConfigError, match=words):
        refuse_unfit_servers([url])


def test_what_is_no_server_of_ours_is_refused_and_one_that_is_not_up_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SWIFT_RLX_API_KEY", KEY)
    with socket.create_server(("127.0.0.1", 0)) as free:
        absent = f"http://127.0.0.1:{free.getsockname()[1]}"
    with listening() as url:
        refuse_unfit_servers([url, absent])
        with pytest.raises(ConfigError, match="answers without TLS: it is http://"):
            refuse_unfit_servers([url.replace("http", "https")])
    with listening(b"<html>") as url, pytest.raises(ConfigError, match="is no server of vLLM or SGLang"):
        refuse_unfit_servers([absent, url])


def test_rank_0_asks_when_the_arguments_are_read_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from swift import RLHFArguments

    def build(url: str, rank: int) -> None:
        monkeypatch.setattr(
            "swift_rlx.integration.arguments.get_dist_setting", lambda: (rank, rank, 1, 1), raising=True
        )
        options = {"rlhf_type": "rloo", "reward_funcs": ["format"], "rollout_endpoints": [url]}
        options |= {"async_rollout": True, "report_to": ["none"]}
        RLHFArguments(**arguments(tiny_model, write_rows(16), tmp_path / "out", **options))

    with listening() as url:
        for rank in (-1, 0):
            with pytest.raises(ConfigError, match="SWIFT_RLX_API_KEY has to hold its key"):
                build(url, rank)
        build(url, 1)
