"""Two ranks on one pipeline: rank 0 drives it, and nobody waits for it inside a collective."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RANKS = {"NPROC_PER_NODE": "2"}
PROMPTS = 8
ENDS_WITHIN_S = 60


def options(model: Path, data: Path, output: Path, **changes: Any) -> dict[str, Any]:
    given = {
        "rlhf_type": "rloo",
        "ddp_backend": "gloo",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "external_plugins": [str(pipeline_runs.PLUGIN)],
        "log_completions": True,
        **pipeline_runs.ASYNC,
        **changes,
    }
    return runs.arguments(model, data, output, **given)


def test_two_ranks_train_each_prompt_once_log_probs_agree_and_no_collective_waits_for_a_slow_rollout(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows = write_rows([{"messages": [{"role": "user", "content": f"say <{n}>"}]} for n in range(PROMPTS)])
    changes = {"reward_funcs": ["slow_at_first"], "ddp_timeout": 8}
    done = runs.swift(options(tiny_model, rows, tmp_path / "out", max_steps=4, **changes), **RANKS)

    assert done.returncode == 0, done.stderr[-3000:]
    lines = (
        (tmp_path / "out" / "completions.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    )  # one a step
    prompts = Counter(prompt for line in lines for prompt in json.loads(line)["prompt"])
    assert len(prompts) == PROMPTS, prompts
    assert set(prompts.values()) == {4}, "each prompt has its four answers, once"
    log = [line for line in runs.log_lines(tmp_path / "out") if "offpolicy/max_log_ratio" in line]
    assert float(log[0]["offpolicy/max_log_ratio"]) < 1e-3
    assert all(float(line["rollout/rows_unusable"]) == 0 for line in log)


def test_a_failure_of_the_pipeline_reaches_every_rank(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    failed_at = tmp_path / "failed at"
    done = runs.swift(
        options(tiny_model, write_rows(PROMPTS), tmp_path / "out", reward_funcs=["broken"], max_steps=2),
        FAILED_AT=str(failed_at),
        **RANKS,
    )
    assert time.time() - float(failed_at.read_text(encoding="utf-8")) < ENDS_WITHIN_S
    assert done.returncode != 0
    assert "no verdict today" in done.stderr
    assert "rank 0 failed: RewardError" in done.stderr, "the other rank says why it ends"
