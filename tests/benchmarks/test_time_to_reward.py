"""The arithmetic of the time to a reward, and that a finished run is not done again; the script alone judges speed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from reward_contestants import CONTESTANTS, OWN_CORE, Task, environment, is_allowed
from reward_curve import rates, spread, time_to, times_of

SCRIPT = Path(__file__).with_name("time_to_reward.py")
OWN_CORE_FOLDER = Path(__file__).resolve().parents[1] / "support" / "own_core"


@pytest.fixture(name="script", scope="module")
def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("time_to_reward", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_the_time_to_a_reward_lies_on_the_line_between_two_checkpoints() -> None:
    rewards = [0.2, 0.4, 0.8, 0.5]
    asked = []

    def reward_at(step: int) -> float:
        asked.append(step)
        return rewards[step]

    assert time_to(0.6, [0.0, 10.0, 30.0, 40.0], reward_at) == pytest.approx(20.0)
    assert asked == [0, 1, 2]
    assert time_to(0.4, [0.0, 10.0, 30.0, 40.0], reward_at) == pytest.approx(10.0)
    assert time_to(0.1, [0.0, 10.0, 30.0, 40.0], reward_at) == 0.0
    assert time_to(0.9, [0.0, 10.0, 30.0, 40.0], reward_at) is None


def test_checkpoints_between_those_that_are_measured_do_not_count() -> None:
    rewards = {0: 0.2, 2: 0.5, 4: 0.7}
    times_s = [0.0, 10.0, 30.0, 40.0, 50.0, 60.0]
    assert time_to(0.6, times_s, rewards.__getitem__, every=2) == pytest.approx(40.0)
    assert time_to(0.9, times_s, rewards.__getitem__, every=2) is None


def test_a_reward_that_fell_before_it_rose_is_interpolated_from_the_last_checkpoint() -> None:
    rewards = [0.5, 0.2, 1.0]
    assert time_to(0.6, [0.0, 10.0, 20.0], rewards.__getitem__) == pytest.approx(15.0)


def test_rates_leave_the_first_two_steps_out() -> None:
    found = rates([0.0, 100.0, 150.0, 160.0, 170.0], [9, 9, 50, 70])
    assert found == {"steps_per_h": pytest.approx(360.0), "tokens_per_s": pytest.approx(6.0)}
    assert rates([0.0, 100.0, 110.0], [9, 20])["tokens_per_s"] == pytest.approx(2.0)


def test_the_clock_begins_when_all_is_loaded() -> None:
    events = [
        {"event": "ready", "at_s": 150.0},
        {"event": "step", "step": 1, "at_s": 160.0},
        {"event": "log", "step": 1, "at_s": 160.1},
        {"event": "step", "step": 2, "at_s": 175.0},
        {"event": "end", "at_s": 175.2},
    ]
    assert times_of(events, 100.0) == (50.0, [0.0, 10.0, 25.0])
    with pytest.raises(ValueError, match="no end"):
        times_of(events[:-1], 100.0)


def test_there_is_no_mean_where_a_run_did_not_get_there() -> None:
    assert spread([1.0, 3.0]) == {
        "mean": 2.0,
        "sd": pytest.approx(2**0.5),
        "min": 1.0,
        "max": 3.0,
        "reached": 2,
        "of": 2,
    }
    assert spread([1.0, None])["mean"] is None
    assert spread([5.0])["sd"] is None


def _row(*seconds: float | None) -> dict[str, Any]:
    return {"to_reward_s": spread(seconds)}


def test_the_better_thread_count_of_each_counts_and_only_asynchronous_runs_are_judged(
    script: ModuleType,
) -> None:
    table = {
        OWN_CORE: {
            "stock": _row(100.0),
            "trl": _row(90.0),
            "ours synchronous": _row(20.0),
            "ours": _row(60.0),
            "ours vllm": _row(45.0),
        },
        "free 1": {"stock": _row(70.0), "ours": _row(50.0)},
        "free 2": {"stock": _row(40.0), "trl": _row(None)},
    }
    assert script.standings(table)["free"] == {"stock": 40.0, "ours": 50.0}
    assert script.speed_ups(table) == {OWN_CORE: pytest.approx(2.0), "free": pytest.approx(0.8)}
    assert script.unreached(table) == ["free 2, trl"]
    assert script.speed_ups({"free 1": {"ours": _row(50.0)}}) == {}


def test_one_thread_is_one_thread_to_those_who_take_turns(script: ModuleType, tmp_path: Path) -> None:
    options = argparse.Namespace(model=tmp_path, steps=8, max_tokens=32, heldout=None, work=tmp_path)
    runs = script.Runs(options)
    assert runs.folder_of("free 1", "trl", 1) == runs.folder_of(OWN_CORE, "trl", 1)
    assert runs.folder_of("free 2", "trl", 1) != runs.folder_of(OWN_CORE, "trl", 1)
    assert runs.folder_of("free 1", "ours", 1) != runs.folder_of(OWN_CORE, "ours", 1)


def test_all_contestants_get_the_same_prompts_in_the_order_of_the_seed(tmp_path: Path) -> None:
    task = Task(Path("model"), 8, 32)
    files = {}
    for name, contestant in CONTESTANTS.items():
        for seed in (1, 2):
            (folder := tmp_path / name / str(seed)).mkdir(parents=True)
            config = task.config(contestant, seed, folder)
            assert config["seed"] == seed
            assert config["dataset_shuffle"] is False
            files[name, seed] = Path(config["dataset"]).read_text(encoding="utf-8")
    assert len(set(files.values())) == 2
    first, second = files["stock", 1], files["stock", 2]
    assert first != second
    assert sorted(first.splitlines()) == sorted(second.splitlines())
    assert len(first.splitlines()) == 256


def test_trainer_and_worker_get_cores_of_their_own_only_where_they_run_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5})
    ours, stock = CONTESTANTS["ours"], CONTESTANTS["stock"]
    variables = environment(ours, OWN_CORE, tmp_path)
    assert variables["OWN_CORES"] == "3,5"
    assert Path(variables["PYTHONPATH"].split(":")[0], "sitecustomize.py").is_file()
    assert "OWN_CORES" not in environment(stock, OWN_CORE, tmp_path)
    assert environment(stock, "free 2", tmp_path)["OMP_NUM_THREADS"] == "2"
    assert is_allowed(ours, "free 1")
    assert not is_allowed(ours, "free 2")
    assert is_allowed(stock, "free 2")


CORES_OF_SELF_AND_CHILD = (
    "import os, subprocess, sys; print(sorted(os.sched_getaffinity(0)), flush=True);"
    "subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.sched_getaffinity(0)))'], check=True)"
)


def test_what_a_worker_starts_stays_on_its_core(tmp_path: Path) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0)) * 2
    variables = os.environ | {"OWN_CORES": f"{first},{last}", "PYTHONPATH": str(OWN_CORE_FOLDER)}
    found = {}
    for argument in ("rlhf", "swift_rlx.cluster.host"):
        words = [sys.executable, "-c", CORES_OF_SELF_AND_CHILD, argument]
        found[argument] = subprocess.run(
            words, env=variables, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    assert found == {"rlhf": [f"[{first}]"] * 2, "swift_rlx.cluster.host": [f"[{last}]"] * 2}


def test_a_finished_run_is_not_done_again_and_a_broken_one_begins_anew(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def run(contestant: Any, task: Task, seed: int, setting: str, folder: Path) -> dict[str, Any]:
        done.append((setting, seed))
        folder.mkdir(parents=True)  # as the real one: fails if something is left of an earlier run
        config = task.config(contestant, seed, folder)
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        if len(done) == 1:
            raise RuntimeError("broken off")
        events = [{"event": "ready", "at_s": 20.0}]
        for step in (1, 2):
            (folder / "adapters" / str(step)).mkdir(parents=True)
            events += [
                {"event": "step", "step": step, "at_s": 20.0 + 10 * step},
                {"event": "log", "step": step, "at_s": 20.0 + 10 * step, "mean_length": 5.5, "reward": 0.1},
            ]
        events.append({"event": "end", "at_s": 40.0})
        return {"begin_s": 5.0, "command_s": 40.0, "others_cores": 0.0, "events": events}

    measured: list[str] = []

    def measure(adapter: Path | None) -> float:
        measured.append("base" if adapter is None else adapter.name)
        return 0.2 if adapter is None else {"2": 0.7}[adapter.name]

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "evaluator", lambda task, limit: measure)
    options = argparse.Namespace(
        model=tmp_path,
        steps=2,
        max_tokens=8,
        heldout=None,
        work=tmp_path / "work",
        output=tmp_path / "out.json",
    )
    runs = script.Runs(options)
    with pytest.raises(RuntimeError, match="broken off"):
        runs.ensure("free 1", "stock", 1)
    first = runs.ensure("free 1", "stock", 1)
    assert runs.ensure("free 1", "stock", 1) == first
    assert done == [("free 1", 1)] * 2
    assert first["to_reward_s"] == pytest.approx(16.0)
    assert first["command_to_reward_s"] == pytest.approx(31.0)
    assert first["tokens_per_s"] == pytest.approx(16 * 5.5 / 10)
    runs.ensure("free 1", "stock", 2)
    assert measured == ["base", "2", "2"]
    assert script.finish(options, runs.table()) == 0
    row = json.loads(options.output.read_text(encoding="utf-8"))["settings"]["free 1"]["stock"]
    assert list(row["runs"]) == ["seed-1", "seed-2"]
    assert row["to_reward_s"]["of"] == 2


@pytest.mark.slow
def test_the_benchmark_runs_ms_swift_trl_and_ours_on_the_same_task(tiny_model: Path, tmp_path: Path) -> None:
    names = ["stock", "trl", "ours"]
    command = [sys.executable, str(SCRIPT), "--contestants", *names, "--settings", OWN_CORE, "--seeds", "4"]
    command += ["--steps", "2", "--max-tokens", "4", "--heldout", "2", "--model", str(tiny_model)]
    command += ["--work", str(tmp_path / "work"), "--output", str(tmp_path / "out.json")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode in (0, 1), result.stderr[-4000:]
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["settings"][OWN_CORE]
    assert list(rows) == names
    for name, row in rows.items():
        assert f"own core  {name:<18}" in result.stdout
        run = row["runs"]["seed-4"]
        assert 0 < run["step_ends_s"][0] < run["step_ends_s"][1] < run["command_s"] - run["load_s"]
        assert 0 < run["tokens_per_s"] <= 1.001 * run["steps_per_h"] / 3600 * 16 * 4
        assert len(run["train_rewards"]) == 2
        assert "0" in run["heldout_rewards"]


@pytest.mark.parametrize(
    ("kind", "settings"), [(OWN_CORE, (OWN_CORE,)), ("free", ("free 1", "free 2"))], ids=["own core", "free"]
)
def test_the_published_numbers_of_all_contestants_and_three_seeds_reach_the_goals(
    kind: str, settings: tuple[str, ...]
) -> None:
    published = json.loads((SCRIPT.parent / "results" / "time_to_reward.json").read_text(encoding="utf-8"))
    best: dict[str, float] = {}
    for setting in settings:
        for name, row in published["settings"][setting].items():
            seconds = [run["to_reward_s"] for run in row["runs"].values()]
            assert len(seconds) == 3
            mean = sum(seconds) / 3
            assert row["to_reward_s"]["mean"] == pytest.approx(mean)
            best[name] = min(mean, best.get(name, mean))
    assert best.keys() == {"stock", "stock vllm", "trl", "ours vllm"}
    ours = best.pop("ours vllm")
    assert published["speed_ups"][kind] == pytest.approx(min(best.values()) / ours)
    assert published["goals"]["speed_up"] == {OWN_CORE: 1.5, "free": 1.0}
    assert min(best.values()) / ours >= published["goals"]["speed_up"][kind]
