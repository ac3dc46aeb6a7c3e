"""What a resumed run says of its journal: batches that come again, and apart from them the fills of waits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swift_rlx.trainers import journal_place


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        (
            [(1, 2), (), (3, 4), ()],
            "2 batches since the checkpoint are trained again as they were, 2 times stored",
        ),
        ([(1, 2)], "1 batches since the checkpoint are trained again as they were, 3 groups are ready"),
    ],
)
def test_fills_of_a_wait_are_no_batches(
    orders: list[tuple[int, ...]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    replay = [SimpleNamespace(orders=one) for one in orders]
    ready = [SimpleNamespace(ready=object()) for _ in range(sum(map(len, orders)) + 3)]
    advanced: Any = SimpleNamespace(replay=replay, open=ready)
    monkeypatch.setattr(journal_place, "go_on", lambda state, directory: (advanced, "segment", 0))
    monkeypatch.setattr(journal_place.logger, "info", lines.append)
    state: Any = SimpleNamespace(journal="a")
    assert journal_place.go_on_from(state, tmp_path / "checkpoint-1", str(tmp_path)) == (advanced, "segment")
    assert said in lines[0]
