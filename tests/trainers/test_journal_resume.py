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
from tiny_llama import save_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
PROMPTS, EPOCHS, MEMBERS = 12, 2, 4
Line = dict[str, Any]


def batches(log: Path) -> dict[tuple[int, int], Line]:
    """What was trained, by optimizer step and rank."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {(line["step"], line["rank"]): line for line in lines}


def trained(lineage: dict[tuple[int, int], Line]) -> Counter[str]:
    """Answers as epoch/index/member, how often each was trained."""
    return Counter(answer for line in lineage.values() for answer in line["own"])


@pytest.mark.parametrize(
    ("ranks", "checkpoint", "killed_at", "backend"),
    [
        pytest.param(2, 2, 3, "transformers", id="two ranks"),  # one rank: tests/chaos
        pytest.param(1, 2, 3, "vllm", id="vLLM", marks=pytest.mark.vllm),
    ],
)
def test_a_killed_run_trains_the_batches_since_its_checkpoint_again_and_then_goes_on(
    ranks: int,
    checkpoint: int,
    killed_at: int,
    backend: str,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    model = tiny_model
    if backend == "vllm":
        model = tmp_path / "llama"
        save_tiny_llama(model, hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
    rows = write_rows([{"messages": [{"role": "user", "content": f"say {n}"}]} for n in range(PROMPTS)])
    plugins = [str(PLUGIN), str(PLUGIN.with_name("trained_plugin.py"))]
    steps = EPOCHS * PROMPTS // (2 * ranks)  # each has two groups a rank
    changes = ASYNC | {"rlhf_type": "rloo", "external_plugins": plugins, "max_steps": steps}
    changes |= {
        "rollout_backend": backend,
        "save_strategy": "steps",
        "save_steps": checkpoint,
        "ddp_backend": "gloo" if ranks > 1 else None,
    }

    def run(
        name: str, *, environment: dict[str, str], **more: Any
    ) -> tuple[Any, dict[tuple[int, int], Line]]:
        options = runs.arguments(model, rows, tmp_path / name, **(changes | more))
        log = tmp_path / f"{name}.jsonl"
        distributed = {"NPROC_PER_NODE": str(ranks)} if ranks > 1 else {}
        return runs.swift(options, TRAINED_LOG=str(log), **distributed, **environment), batches(log)

    result, first = run("first", environment={"KILL_AT": str(killed_at)})
    assert result.returncode != 0
    if ranks == 1:
        assert result.returncode % 256 == 256 - signal.SIGKILL, (
            "the launcher of ms-swift passes it on as a number"
        )
    saved = tmp_path / "first" / f"checkpoint-{checkpoint}"
    result, second = run("second", environment={}, resume_from_checkpoint=str(saved), save_strategy="no")
    assert result.returncode == 0, result.stderr[-3000:]

    again = [(step, rank) for step in range(checkpoint, killed_at + 1) for rank in range(ranks)]
    assert set(again) <= {*first, (killed_at, 0)}, "the other rank may not have come as far as the killed one"
    assert all(second[at] == first[at] for at in again if at in first), "as they were, bit for bit"
    lineage = {at: line for at, line in first.items() if at[0] < checkpoint} | second
    assert set(lineage) == {(step, rank) for step in range(steps) for rank in range(ranks)}
    assert trained(lineage) == {
        f"{epoch}/{index}/{member}": 1
        for epoch in range(EPOCHS)
        for index in range(PROMPTS)
        for member in range(MEMBERS)
    }
    shown = result.stdout + result.stderr
    replayed = killed_at + 1 - checkpoint
    assert re.search(rf"{replayed} batches since the checkpoint are trained again as they were", shown)
    [share] = re.findall(r"journal: \d+ entries, [\d.]+ MB, ([\d.]+) % of the time", shown)
    assert float(share) < 100
    assert list((tmp_path / "first" / "rlx" / "journal").glob("*.arrow"))
