"""A served reward is replaced by its next version during a run of the pipeline."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
from pipeline_runs import PickedUp

from swift_rlx.errors import RewardError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 24


class Served:
    """Scores below 1 as v3, and from its `rows_of_v3`-th row on, 10 more as v4."""

    name = "judge"

    def __init__(self, rows_of_v3: int) -> None:
        self.version = "v3"
        self.rows_left = rows_of_v3

    async def score(self, rows: Sequence[Any]) -> list[float | None]:
        if self.rows_left <= 0:
            self.version = "v4"
        self.rows_left -= len(rows)
        return [10.0 * (self.version == "v4") + len(row.completion) % 7 / 7 for row in rows]


@pytest.fixture
def rows(write_rows: Callable[..., Path]) -> Path:
    return write_rows([{"messages": [{"role": "user", "content": f"say {row}"}]} for row in range(PROMPTS)])


@pytest.mark.parametrize("choice", ["rescore", "restart"])
def test_no_batch_mixes_the_versions_and_statistics_begin_anew(
    choice: str, tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked_up = PickedUp(monkeypatch)
    trainer = pipeline_runs.train(
        tiny_model, rows, tmp_path / "out",
        reward_funcs=[Served(rows_of_v3=24)], reward_version_change=choice, reward_normalize="zscore", max_steps=8,
    )  # fmt: skip

    versions = [batch.versions["judge"] for batch in picked_up.batches]
    assert versions == sorted(versions)
    assert {"v3", "v4"} == set(versions), "both trained"
    for batch in picked_up.batches:
        for row in batch.rows:
            if not row.is_filler:
                assert (row.rewards[0] >= 10) == (batch.versions["judge"] == "v4")
    of_v4 = sum(version == "v4" for version in versions)
    [moments] = trainer.reward_combiner.state().values()
    assert moments[0] <= of_v4 * len(picked_up.batches[0].rows), "only rows of the new version count"
    assert moments[1] >= 10


def test_by_default_the_run_ends_and_names_both_versions(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(RewardError, match="has the version 'v4' now, and scored with 'v3' before"):
        pipeline_runs.train(tiny_model, rows, tmp_path / "out", reward_funcs=[Served(24)], max_steps=8)
