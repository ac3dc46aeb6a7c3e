"""Questions that only a fresh interpreter can answer, as one of `swift`'s own processes would.

`ask` starts `sys.executable` with `START`, which notes whether the import finder was there from the
beginning, and calls `main` in it. Every step is guarded: a package that fails to import becomes a line of the
report.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swift_rlx.registry import one_line

# The working directory, which `-c` puts on the path, is not there for the processes of `swift`.
START = (
    "import sys; sys.path[:1] = [] if sys.path[0] == '' else sys.path[:1];"
    " found = any(hasattr(f, 'swift_rlx') for f in sys.meta_path);"
    " from swift_rlx.cli.probe import main; main(found, sys.argv[1])"
)
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Probe:
    """Answers by step; one line for each step that failed. `found_at_start`: the finder was in place."""

    found_at_start: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def ask(timeout_s: float = TIMEOUT_S) -> Probe:
    """Run the steps in a new interpreter; if it dies, hangs or cannot import us: the error `interpreter`."""
    with tempfile.TemporaryDirectory(prefix="swift-rlx-doctor-") as folder:
        path = os.path.join(folder, "answers.json")
        try:
            result = subprocess.run(
                [sys.executable, "-c", START, path],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Probe(errors={"interpreter": f"it did not finish within {timeout_s:g} s"})
        if not os.path.exists(path):
            last = (result.stderr.strip() or "no output").splitlines()[-1]
            return Probe(errors={"interpreter": f"it ended with exit code {result.returncode}: {last}"})
        with open(path, encoding="utf-8") as file:
            return Probe(**json.load(file))


def main(found_at_start: bool, path: str) -> None:
    """Answer every step and write the answers to `path`, all at once."""
    answers: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, step in STEPS.items():
        try:
            answers[name] = step()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (some package does not import)
            errors[name] = one_line(error)
    content = {"found_at_start": found_at_start, "answers": answers, "errors": errors}
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)


def _hook() -> dict[str, Any]:
    from swift_rlx._hooks import hooks

    return {
        "not_live": hooks.why_not_live("swift_rlx"),
        "plugins": {name: plugin.origin for name, plugin in hooks.plugins.items()},
        "failures": dict(hooks.failures),
    }


def _devices() -> dict[str, Any]:
    import torch
    import torch.distributed as distributed

    return {
        "accelerators": _accelerators(torch),
        "cores": len(os.sched_getaffinity(0)),
        "backends": [
            name
            for name in ("nccl", "gloo")
            if distributed.is_available() and getattr(distributed, f"is_{name}_available")()
        ],
    }


def _accelerators(torch: Any) -> list[str]:
    """One line a device; NPUs are there once ms-swift has imported torch_npu."""
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [f"{device.name}, {device.total_memory / 2**30:.0f} GiB" for device in devices]
    if hasattr(torch, "npu") and torch.npu.is_available():
        return [torch.npu.get_device_name(index) for index in range(torch.npu.device_count())]
    return ["Apple MPS"] if torch.backends.mps.is_available() else []


def _inspection(question: str) -> Callable[[], Any]:
    def step() -> Any:
        import importlib

        return getattr(importlib.import_module("swift_rlx.integration.inspection"), question)()

    return step


# In this order: later steps count on `swift` having been imported.
STEPS: dict[str, Callable[[], Any]] = {
    "swift": _inspection("import_ms_swift"),
    "contract": _inspection("contract_state"),
    "trainers": _inspection("import_trainers"),
    "types": _inspection("accepted_types"),
    "rewards": _inspection("listed_rewards"),
    "devices": _devices,
    "hook": _hook,
}
