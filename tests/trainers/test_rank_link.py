"""What rank 0 tells the others belongs to one training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from swift_rlx.trainers import rank_link
from swift_rlx.trainers.rank_link import RankLink

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "two_trainings.py"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_second_training_does_not_read_the_words_of_the_first(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = []
    for process in ranks:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err[-2000:]
        said.append(out.splitlines())
    assert said[0] == ["one", "disk full", "collective after the word: True", "two"]
    assert said[1] == ["one", "rank 0 failed: OSError: disk full", "collective after the word: True", "two"]


def test_a_store_that_is_gone_does_not_hide_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def set(self, key: str, value: bytes) -> None:
            raise dist.DistNetworkError("the store is gone")

    monkeypatch.setattr(rank_link, "_is_distributed", lambda: False)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    link = RankLink(torch.device("cpu"))
    link._store = Gone()  # type: ignore[assignment]
    link.fail(ValueError("what went wrong"))
