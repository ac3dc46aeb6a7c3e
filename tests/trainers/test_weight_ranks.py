"""Weights that are spread over ranks: FSDP2 on two processes, and ZeRO-3's gathering as ms-swift asks for it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from safetensors.torch import load_file

from swift_rlx.trainers import weight_export
from swift_rlx.trainers.weight_export import WeightExporter

SCRIPT = Path(runs.__file__).with_name("sharded_export.py")


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote, a folder for each case of the script."""
    folder = tmp_path_factory.mktemp("ranks")
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": runs.free_port()}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=240)
        assert rank.returncode == 0, errors[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("full", "full"),
        ("lora", "adapter"),
        ("merged", "full"),
        ("dora", "full"),
        ("adapter-with-modules", "adapter"),
    ],
)
def test_fsdp2_on_two_ranks_gives_the_files_of_the_whole_model(case: str, kind: str, exported: Path) -> None:
    folder = exported / case
    whole = read(folder / "whole")
    assert len(whole) > 10
    for name in ("sharded", "again"):
        tensors = read(folder / name)
        assert set(tensors) == set(whole)
        assert all(torch.equal(tensors[key], whole[key]) for key in whole)

    main, other = (json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert main["kind"] == kind
    exact, first, second = map(np.array, main["probes"])
    assert 0 < np.abs(first - exact).max() < 0.3  # sharded, it computes in bfloat16
    assert np.array_equal(first, second)
    assert "/proc/nowhere: " in main["failed"]
    assert "rank 0 says why" in other["failed"]


class Partitioned:
    """Like ZeRO-3: outside of a gathering, parameters are empty and say how large they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.whole = {id(one): one.data for one in model.parameters()}
        self.most = 0
        for one in model.parameters():
            one.ds_numel = one.numel()
            one.data = torch.empty(0)

    @contextmanager
    def gather(self, tensors: list[Any]) -> Iterator[None]:
        mine = [one for one in tensors if id(one) in self.whole]
        self.most = max(self.most, sum(one.ds_numel for one in mine))
        for one in mine:
            one.data = self.whole[id(one)]
        yield
        for one in mine:
            one.data = torch.empty(0)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["full", "lora", "merged", "dora"])
def test_parameters_that_are_only_there_while_gathered(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sharded_export import stand_in, tiny_model

    model = tiny_model(case)
    trainer = stand_in(model)
    exporter = WeightExporter(trainer, "vllm", max_adapter_rank=8)
    monkeypatch.setattr(
        exporter, "make_probe", lambda: None
    )  # DeepSpeed gathers for a forward pass by itself
    needed, total = exporter.bytes_needed(), sum(one.numel() for one in model.parameters())
    for name in ("whole", "parted"):
        (tmp_path / name).mkdir()
    exporter.export(tmp_path / "whole")

    zero3 = Partitioned(model)
    monkeypatch.setattr(weight_export, "get_gather_if_zero3_context", lambda trainer: zero3.gather)
    monkeypatch.setattr(weight_export, "GROUP_BYTES", 40_000)
    assert exporter.bytes_needed() == needed
    exporter.export(tmp_path / "parted")

    whole, parted = read(tmp_path / "whole"), read(tmp_path / "parted")
    assert set(whole) == set(parted)
    assert all(torch.equal(parted[name], whole[name]) for name in whole)
    assert zero3.most < total / 2
    assert all(one.numel() == 0 for one in model.parameters())
