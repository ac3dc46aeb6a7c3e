"""How a worker process is started."""

from __future__ import annotations

from swift_rlx.cluster import launch


def test_the_ranks_of_the_trainer_are_not_told_to_workers(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANKING", "kept")
    environment = launch.without_ranks({"OMP_NUM_THREADS": "2"})
    assert not {"RANK", "TORCHELASTIC_RUN_ID"} & environment.keys()
    assert environment["RANKING"] == "kept"
    assert environment["OMP_NUM_THREADS"] == "2"
