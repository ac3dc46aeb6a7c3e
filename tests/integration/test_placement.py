"""Devices are settled while arguments are parsed, on machines whose accelerators are only pretended."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_rlx.errors import ConfigError
from swift_rlx.integration.placement import settle_devices


def arguments(**changes: Any) -> SimpleNamespace:
    plain = {"use_cpu": False, "rollout_workers": 1, "rollout_devices": None, "rlx_engine_options": {}}
    plain |= {"rollout_endpoints": None}
    return SimpleNamespace(**plain | changes)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def pretend(count: int, ranks: int = 1, visible: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "undone by the fixture")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        for name in [name for name in sys.modules if name == "swift.ui"]:
            monkeypatch.delitem(sys.modules, name)

    return pretend


def test_the_trainer_is_kept_off_the_workers_cards(cards: Callable[..., None]) -> None:
    cards(8, ranks=4)
    args = arguments(rollout_workers=2)
    settle_devices(args)
    assert args.rlx_worker_devices == [["4"], ["5"]]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_ids_are_those_of_the_machine_where_the_user_restricted_them(cards: Callable[..., None]) -> None:
    cards(3, visible="2,5,7")
    args = arguments()
    settle_devices(args)
    assert args.rlx_worker_devices == [["5"]]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"


def test_one_card_is_refused_before_anything_is_loaded(cards: Callable[..., None]) -> None:
    cards(1)
    with pytest.raises(ConfigError, match="--async_rollout false, which generates on the ranks themselves"):
        settle_devices(arguments())


def test_one_card_is_shared_where_memory_is_left(cards: Callable[..., None]) -> None:
    cards(1)
    args = arguments(rlx_engine_options={"gpu_memory_utilization": 0.4})
    settle_devices(args)
    assert args.rlx_worker_devices == [["0"]]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_arguments_that_are_built_again_find_what_the_user_had_set(
    cards: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def visible() -> int:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        return 8 if named is None else len(named.split(","))

    cards(8, ranks=4)
    monkeypatch.setattr(torch.cuda, "device_count", visible)
    for _ in range(2):
        args = arguments(rollout_workers=2)
        settle_devices(args)
        assert args.rlx_worker_devices == [["4"], ["5"]]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_a_cpu_run_ignores_the_cards(cards: Callable[..., None]) -> None:
    cards(4)
    args = arguments(use_cpu=True, rollout_workers=2)
    settle_devices(args)
    assert args.rlx_worker_devices == [[], []]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
