"""What is compared, counted and judged of the tokens to a reward; the script alone runs the trainings."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("tokens_to_reward.py")


@pytest.fixture(name="script", scope="module")
def _script() -> ModuleType:
    path = list(sys.path)
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("tokens_to_reward", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def _options(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(steps=4, backend="vllm", goal=0.6, output=tmp_path / "tokens.json")


def _results(*tokens: float | None) -> dict[int, dict[str, Any]]:
    return {seed: {"tokens_to_reward": one} for seed, one in enumerate(tokens, 1)}


def test_the_runs_differ_in_the_share_of_stored_batches_alone(script: ModuleType, tmp_path: Path) -> None:
    online, hybrid = (script.contestant(ratio, tmp_path, "vllm").changes for ratio in (0.0, 0.5))
    assert online["trajectory_store"] == str(tmp_path)
    assert online["rollout_backend"] == "vllm"
    assert hybrid == online | {"offline_ratio": 0.5}


def test_tokens_are_those_that_had_arrived_by_the_end_of_a_step(script: ModuleType, tmp_path: Path) -> None:
    lines = [{"loss": 0.1, "store/tokens_generated": 70}, {"eval_loss": 1}, {"store/tokens_generated": 90}]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert script.tokens_at(tmp_path) == [0.0, 70, 90]


@pytest.mark.parametrize(("hybrid", "status"), [((700.0, 680.0), 0), ((720.0, 700.0), 1)])
def test_the_goal_is_at_most_seven_tenths_of_the_tokens(
    script: ModuleType, tmp_path: Path, hybrid: tuple[float, float], status: int
) -> None:
    results = {"0": _results(900.0, 1100.0), "0.5": _results(*hybrid)}
    assert script.finish(_options(tmp_path), results) == status
    written = json.loads((tmp_path / "tokens.json").read_text(encoding="utf-8"))
    assert written["shares"]["0.5"] == pytest.approx(sum(hybrid) / 2000)


def test_a_run_that_never_reached_the_reward_is_no_success(script: ModuleType, tmp_path: Path) -> None:
    results = {"0": _results(900.0, 1100.0), "0.5": _results(500.0, None)}
    assert script.finish(_options(tmp_path), results) == 1


def test_the_published_hybrid_runs_need_at_most_seven_tenths_of_the_tokens() -> None:
    published = json.loads((SCRIPT.parent / "results" / "tokens_to_reward.json").read_text(encoding="utf-8"))
    assert published["goals"] == {"heldout_reward": 0.6, "most_tokens": {"0.5": 0.7}}
    means = {}
    for name in ("0", "0.5"):
        tokens = [run["tokens_to_reward"] for run in published["ratios"][name]["runs"].values()]
        assert len(tokens) >= 3
        means[name] = sum(tokens) / len(tokens)
    assert published["shares"]["0.5"] == pytest.approx(means["0.5"] / means["0"])
    assert published["shares"]["0.5"] <= 0.7
