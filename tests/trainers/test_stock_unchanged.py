"""ms-swift's own commands do the same with the package live as with it switched off by SWIFT_PLUGINS=0."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch

from swift_rlx.integration.algorithm_table import NAMES
from swift_rlx.integration.fields import FIELD_NAMES

REWARD = """
from swift.rewards import ORM, orms


class Variety(ORM):
    def __call__(self, completions, **columns):
        return [len(set(text)) / 10 for text in completions]


orms["variety"] = Variety
"""


Command = Callable[[Path], list[str]]


def live_and_off(tmp_path: Path, words_for: Command) -> list[Path]:
    """Run `swift words_for(folder)` in a folder with the package live and in one with it off, side by side.

    What is printed goes to the file `printed` there. Both must succeed.
    """
    started = []
    for name, variables in {"live": {}, "off": {"SWIFT_PLUGINS": "0"}}.items():
        folder = tmp_path / name
        folder.mkdir()
        command = [runs.command({})[0], *words_for(folder)]
        environment = os.environ | variables
        with (folder / "printed").open("wb") as printed, (folder / "errors").open("wb") as errors:
            started.append(
                (folder, subprocess.Popen(command, env=environment, stdout=printed, stderr=errors))
            )
    try:
        codes = [process.wait(timeout=200) for _, process in started]
    finally:
        for _, process in started:
            process.kill()
    assert codes == [0, 0], [(folder / "errors").read_text(encoding="utf-8")[-2000:] for folder, _ in started]
    return [folder for folder, _ in started]


def traces(folder: Path) -> dict[str, Any]:
    """What a run of two steps leaves in `folder / "run"`, which args.json calls FOLDER here."""
    output = folder / "run"
    args = (output / "args.json").read_text(encoding="utf-8")
    return {
        "losses": [(line["loss"], line["grad_norm"]) for line in runs.log_lines(output) if "loss" in line],
        "weights": runs.weights(output / "checkpoint-2"),
        "args": json.loads(args.replace(str(folder), "FOLDER")),
    }


def assert_equal_traces(live: dict[str, Any], off: dict[str, Any]) -> None:
    assert live["losses"] == off["losses"]
    assert len(live["losses"]) == 2
    assert all(gradient > 0 for _, gradient in live["losses"])
    assert live["args"] == off["args"]
    assert live["weights"].keys() == off["weights"].keys()
    for name, tensor in live["weights"].items():
        assert torch.equal(tensor, off["weights"][name]), name


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_stock_grpo_trains_bit_for_bit_as_without_the_package(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    plugin = tmp_path / "variety.py"
    plugin.write_text(REWARD, encoding="utf-8")
    data = write_rows()

    def grpo(folder: Path) -> list[str]:
        changes = {"rlhf_type": "grpo", "external_plugins": str(plugin), "reward_funcs": "variety"}
        saving = {"save_strategy": "steps", "save_steps": 2}
        return runs.command(runs.arguments(tiny_model, data, folder / "run", **changes | saving))[1:]

    live, off = map(traces, live_and_off(tmp_path, grpo))

    assert_equal_traces(live, off)
    assert live["args"]["rlhf_type"] == "grpo"
    assert not {"rlx_type", "group_baseline", "reward_on_error"} & live["args"].keys()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_stock_sft_trains_bit_for_bit_as_without_the_package(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Say {row}"}, {"role": "assistant", "content": "one two"}]}
        for row in range(16)
    ]
    data = write_rows(rows)

    def sft(folder: Path) -> list[str]:
        changes = {"num_generations": None, "max_completion_length": None, "async_rollout": None}
        saving = {"save_strategy": "steps", "save_steps": 2}
        words = runs.command(runs.arguments(tiny_model, data, folder / "run", **changes | saving))
        return ["sft", *words[2:]]

    live, off = map(traces, live_and_off(tmp_path, sft))

    assert_equal_traces(live, off)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_help_of_rlhf_lists_our_types_and_flags() -> None:
    command = [*runs.command({})[:2], "--help"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    choices = re.search(r"--rlhf_type \{(.*?)\}", text, re.DOTALL)

    assert choices is not None
    assert {"dpo", "grpo", *NAMES} <= set(re.split(r"[,\s]+", choices[1]))
    assert {f"--{name}" for name in FIELD_NAMES} <= set(re.findall(r"--\w+(?=[ ,])", text))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_help_of_sft_is_unchanged(tmp_path: Path) -> None:
    live, off = live_and_off(tmp_path, lambda folder: ["sft", "--help"])

    assert (live / "printed").read_text(encoding="utf-8") == (off / "printed").read_text(encoding="utf-8")
    assert "usage:" in (live / "printed").read_text(encoding="utf-8")
