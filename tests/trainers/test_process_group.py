"""The process group at the end of the process: gloo's is left with its threads joined, and only after success."""

import atexit
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch.distributed as dist

from swift_rlx.trainers import process_group
from swift_rlx.trainers.process_group import ProcessGroupMixin, leave_gloo_group

PLUGIN = Path(runs.__file__).with_name("group_witness.py")


class Training:
    def train(self, outcome: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Trainer(ProcessGroupMixin, Training):
    pass


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would run at the end of this process."""
    callbacks: list[Any] = []
    monkeypatch.setattr(atexit, "register", callbacks.append)
    monkeypatch.setattr(
        atexit, "unregister", lambda callback: callback in callbacks and callbacks.remove(callback)
    )
    return callbacks


def test_any_number_of_trainings_that_end_well_leave_the_group_once(at_exit: list[Any]) -> None:
    assert [Trainer().train("first"), Trainer().train("second")] == ["first", "second"]
    assert at_exit == [leave_gloo_group]


def test_the_group_is_not_left_after_a_training_that_failed(at_exit: list[Any]) -> None:
    Trainer().train("first")
    with pytest.raises(OSError, match="disk full"):
        Trainer().train(OSError("disk full"))
    assert at_exit == []


@pytest.mark.parametrize(("initialized", "backend"), [(False, "gloo"), (True, "nccl")])
def test_without_a_group_of_gloo_nothing_is_destroyed(
    initialized: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroyed: list[str] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: initialized)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: destroyed.append(backend))
    monkeypatch.setattr(process_group, "_trained", [])

    leave_gloo_group()
    assert destroyed == []

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    leave_gloo_group()
    assert destroyed == [backend]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "variables",
    [pytest.param({}, marks=pytest.mark.versions), {"HOLD_TRAINER": "1"}],
    ids=["swift", "held_trainer"],
)
def test_two_ranks_end_with_exit_code_0_and_without_a_thread_of_gloo(
    variables: dict[str, str], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    options = runs.arguments(
        tiny_model,
        write_rows(),
        tmp_path / "run",
        rlhf_type="rloo",
        reward_funcs=["format"],
        gradient_accumulation_steps=1,
        ddp_backend="gloo",
        external_plugins=str(PLUGIN),
    )
    done = runs.swift(options, NPROC_PER_NODE="2", WITNESS=str(tmp_path), **variables)

    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        trained, end = (
            json.loads((tmp_path / f"{moment}-{rank}.json").read_text()) for moment in ("trained", "end")
        )
        assert trained["group"]
        assert "pt_gloo_runloop" in trained["gloo_threads"]  # the workers that the crash comes from
        assert end == {"group": False, "gloo_threads": []}
