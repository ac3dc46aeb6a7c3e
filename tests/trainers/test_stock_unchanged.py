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

LIVE_AND_OFF = ({}, {"SWIFT_PLUGINS": "0"})
REWARD = """
from swift.rewards import ORM, orms


class Variety(ORM):
    def __call__(self, completions, **columns):
        return [len(set(text)) / 10 for text in completions]


orms["variety"] = Variety
"""


def swift(words: list[str], **environment: str) -> str:
    """What `swift words` prints; it must succeed."""
    command = [runs.command({})[0], *words]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train(words: list[str], folder: Path, **environment: str) -> dict[str, Any]:
    """The traces that a run of two steps leaves in `folder`, which is emptied for the next one."""
    swift(words, **environment)
    lines = runs.log_lines(folder)
    traces = {
        "losses": [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line],
        "weights": runs.weights(folder / "checkpoint-2"),
        "args": json.loads((folder / "args.json").read_text(encoding="utf-8")),
    }
    folder.rename(folder.with_name(f"{folder.name}-{len(environment)}"))
    return traces


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
    plugin, output = tmp_path / "variety.py", tmp_path / "run"
    plugin.write_text(REWARD, encoding="utf-8")
    options = runs.arguments(
        tiny_model,
        write_rows(),
        output,
        rlhf_type="grpo",
        external_plugins=str(plugin),
        reward_funcs="variety",
        save_strategy="steps",
        save_steps=2,
    )
    live, off = (train(runs.command(options)[1:], output, **env) for env in LIVE_AND_OFF)

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
    output = tmp_path / "run"
    options = runs.arguments(
        tiny_model,
        write_rows(rows),
        output,
        num_generations=None,
        max_completion_length=None,
        save_strategy="steps",
        save_steps=2,
    )
    words = ["sft", *runs.command(options)[2:]]
    live, off = (train(words, output, **env) for env in LIVE_AND_OFF)

    assert_equal_traces(live, off)


def help_of(command: str) -> list[str]:
    """The help with the package live and off; the sets in it are printed in the order of their hashes."""
    return [swift([command, "--help"], PYTHONHASHSEED="0", **env) for env in LIVE_AND_OFF]


def types_and_flags(text: str) -> tuple[set[str], set[str]]:
    choices = re.search(r"--rlhf_type \{(.*?)\}", text, re.DOTALL)
    assert choices is not None
    return set(re.split(r"[,\s]+", choices[1])), set(re.findall(r"--\w+(?=[ ,])", text))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_help_of_rlhf_lists_our_types_and_flags() -> None:
    (types, flags), (stock_types, stock_flags) = map(types_and_flags, help_of("rlhf"))

    assert types == stock_types | set(NAMES)
    assert flags - stock_flags == {f"--{name}" for name in FIELD_NAMES}
    assert stock_flags < flags
    assert "grpo" in stock_types


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", ["sft", "pt"])  # sft shows one flag only, pt all of sft's
def test_help_of_other_commands_is_unchanged(command: str) -> None:
    live, off = help_of(command)

    assert live == off
    assert "usage:" in live
