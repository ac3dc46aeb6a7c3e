"""What the benchmark of offline runs asks for, and that finished parts are not done again; the script alone judges."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

SCRIPT = Path(__file__).with_name("offline_reward.py")
REPOSITORY = SCRIPT.parents[2]
NO_ENGINE = REPOSITORY / "tests" / "support" / "no_engine"


@pytest.fixture(name="script", scope="module")
def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("offline_reward", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_answers_and_training_are_those_of_the_quickstart(script: ModuleType) -> None:
    folder = REPOSITORY / "examples" / "quickstart"
    online, offline = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in ("rloo", "offline"))
    assert online["system"] == script.SYSTEM
    assert script.ANSWERS["max-tokens"] == online["max_completion_length"]
    assert script.ANSWERS["rewards"] == online["reward_funcs"]
    assert "reward_funcs" not in offline
    assert offline["temperature"] == 1.0, "that of the sampling"
    command = re.sub(r"\\\n\s+", "", (folder / "README.md").read_text())
    for name, value in script.ANSWERS.items():
        assert f"--{name} {value} " in command


def test_finished_parts_are_not_done_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("a command was run")

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "answers.store").mkdir()
    (tmp_path / "training.json").write_text(json.dumps({"steps": 3}))
    options = argparse.Namespace()
    assert script.generate(options, 1, tmp_path) == tmp_path / "answers.store"
    assert script.train(options, 1, tmp_path / "answers.store", tmp_path) == {"steps": 3}
    (tmp_path / "rewards.json").write_text("[[1.0, 0.5]]")
    assert script.Evaluator.rewards(None, tmp_path / "rewards.json", None) == [[1.0, 0.5]]


def test_no_engine_can_be_imported_in_the_training() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import swift_rlx.store; import swift_rlx.backends.transformers_engine"],
        env={"PYTHONPATH": f"{NO_ENGINE}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no engine here" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_each_published_run_on_stored_answers_alone_raised_the_held_out_reward() -> None:
    published = json.loads((SCRIPT.parent / "results" / "offline_reward.json").read_text(encoding="utf-8"))
    assert len(published["runs"]) >= 3
    for run in published["runs"].values():
        rise, error = run["rise"]["mean"], run["rise"]["standard_error"]
        assert rise == pytest.approx(run["after"]["mean"] - run["before"]["mean"])
        assert rise >= max(0.2, 3 * error)
        assert run["is_success"]
