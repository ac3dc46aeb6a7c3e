"""The process group at the end of the process is left after success alone; `test_ranks` sees it happen."""

import atexit
from typing import Any

import pytest
import torch.distributed as dist

from swift_rlx.trainers import process_group
from swift_rlx.trainers.process_group import ProcessGroupMixin, leave_gloo_group


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
