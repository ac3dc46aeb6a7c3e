"""ms-swift's real web page, started for a test and driven over HTTP."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The page is 12 MB: on busy cores its first answer takes longer than the 3 s after which gradio calls
# localhost unreachable.
START = """\
import sys
import gradio.networking
gradio.networking.url_ok = lambda url: True
from swift.ui import webui_main
webui_main(["--server_name", "127.0.0.1", "--server_port", sys.argv[1], "--lang", "en"])
"""
ENVIRONMENT = {
    "BROWSER": "true",  # the program that is told to show the page
    "GRADIO_ANALYTICS_ENABLED": "False",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


class Page:
    """The tab in which `rlhf_type` is chosen. Functions are found by name and an element they deal with."""

    def __init__(self, url: str) -> None:
        from gradio_client import Client

        self._client = Client(url, verbose=False)
        self._elements = {c["id"]: c["props"] for c in self._client.config["components"]}
        self._submit = self._function("train_local", self._id("rlhf_type"))
        names = [self._elements[i].get("elem_id") for i in self._submit["outputs"]]
        self._tasks = self._submit["outputs"][names.index("running_tasks")]

    def choices(self, element: str) -> list[str]:
        """What a drop-down offers."""
        return [choice[0] for choice in self._elements[self._id(element)]["choices"]]

    def propose_beta(self, rlhf_type: str) -> Any:
        """What the page does to the field `beta` when a type is chosen."""
        return self._client.predict(
            rlhf_type, fn_index=self._function("update_beta", self._id("rlhf_type"))["id"]
        )

    def submit(self, **values: Any) -> tuple[str, str, str]:
        """Fill in fields and begin the training: the command, the logging folder, the task."""
        filled = []
        for index in self._submit["inputs"]:
            field = self._elements[index]
            filled.append(values.pop(field.get("elem_id"), field.get("value")))
        assert not values, f"the form has no {', '.join(values)}"
        command, folder, *updates = self._client.predict(*filled, fn_index=self._submit["id"])
        [tasks] = [update for update in updates if update.get("value")]  # layout elements are left out
        return command, folder, tasks["value"]

    def show_status(self, task: str) -> list[str]:
        """The labels of the plots after a click on "Show running status"."""
        shown = self._client.predict(task, fn_index=self._function("update_log", self._tasks)["id"])
        return [plot["label"] for plot in shown[1:]]

    def follow(self, folder: str, task: str) -> Iterator[tuple[str, list[Any]]]:
        """The log and the plots, again and again."""
        job = self._client.submit(folder, task, fn_index=self._function("wait", self._tasks)["id"])
        for log, *plots in job:
            yield (log or {}).get("value", ""), plots

    def _id(self, element: str) -> int:
        [found] = [index for index, field in self._elements.items() if field.get("elem_id") == element]
        return found

    def _function(self, name: str, element: int) -> dict[str, Any]:
        [found] = [
            function
            for function in self._client.config["dependencies"]
            if function["api_name"].rstrip("0123456789_") == name and element in function["inputs"]
        ]
        return found


@contextmanager
def serve(folder: Path, timeout_s: float = 240.0, **environment: str) -> Iterator[Page]:
    """Start the page with `folder` as its working directory; it is gone afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = os.path.dirname(sys.executable)
    variables = os.environ | ENVIRONMENT | {"PATH": f"{commands}:{os.environ['PATH']}"} | environment
    variables["MODELSCOPE_CACHE"] = str(folder / "cache")  # the page keeps submitted forms there
    os.environ.update(no_proxy="127.0.0.1", NO_PROXY="127.0.0.1")  # for the client
    with open(folder / "page.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(port)], cwd=folder, env=variables, stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}/"
        _wait_for(f"{url}config", process, folder / "page.log", time.monotonic() + timeout_s)
        yield Page(url)
    finally:
        process.kill()
        process.wait(timeout=30)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except OSError:
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                what = "ended" if ended else "did not answer in time"
                raise RuntimeError(f"the web page {what}:\n{log.read_text(encoding='utf-8')}") from None
        time.sleep(0.5)
