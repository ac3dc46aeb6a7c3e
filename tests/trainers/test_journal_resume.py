"""A trainer that is killed between two checkpoints goes on from the journal: nothing is lost, nothing is made twice."""

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
from pipeline_runs import ASYNC, PLUGIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
PROMPTS, STEPS, CHECKPOINT, KILLED_AT = 12, 10, 3, 6


def batches(log: Path) -> dict[int, dict[str, Any]]:
    """What was trained, by optimizer step."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line for line in lines}


def prompts(trained: dict[int, dict[str, Any]]) -> Counter[str]:
    return Counter(prompt for line in trained.values() for prompt in line["prompts"])


def test_a_killed_run_trains_the_batches_since_its_checkpoint_again_and_then_goes_on(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows = write_rows([{"messages": [{"role": "user", "content": f"say {n}"}]} for n in range(PROMPTS)])
    plugins = [str(PLUGIN), str(PLUGIN.with_name("trained_plugin.py"))]
    changes = {"external_plugins": plugins, "max_steps": STEPS, "rlhf_type": "rloo"}

    def run(name: str, saves: bool = True, **more: Any) -> tuple[Any, dict[int, dict[str, Any]]]:
        save = {"save_strategy": "steps", "save_steps": CHECKPOINT} if saves else {}
        kill = {"KILL_AT": str(more.pop("kill_at"))} if "kill_at" in more else {}
        options = runs.arguments(tiny_model, rows, tmp_path / name, **(ASYNC | changes | save | more))
        log = tmp_path / f"{name}.jsonl"
        return runs.swift(options, TRAINED_LOG=str(log), **kill), batches(log)

    result, whole = run("whole", saves=False)
    assert result.returncode == 0, result.stderr[-3000:]
    result, first = run("first", kill_at=KILLED_AT - 1)
    assert result.returncode % 256 == 256 - signal.SIGKILL, (
        "the launcher of ms-swift passes it on as a number"
    )
    checkpoint = tmp_path / "first" / f"checkpoint-{CHECKPOINT}"
    result, second = run("second", resume_from_checkpoint=str(checkpoint))
    assert result.returncode == 0, result.stderr[-3000:]

    again = range(CHECKPOINT, KILLED_AT)
    assert [second[step] for step in again] == [first[step] for step in again], "as they were, bit for bit"
    lineage = {step: line for step, line in first.items() if step < CHECKPOINT} | second
    assert sorted(lineage) == sorted(whole) == list(range(STEPS))
    assert prompts(lineage) == prompts(whole)
    shown = result.stdout + result.stderr
    assert re.search(rf"{len(again)} batches since the checkpoint are trained again as they were", shown)
    [share] = re.findall(r"journal: \d+ entries, [\d.]+ MB, ([\d.]+) % of the time", shown)
    assert float(share) < 100
    assert list((tmp_path / "second" / "rlx" / "journal").glob("*.arrow"))
