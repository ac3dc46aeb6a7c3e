"""A real run whose reward is served: version 3 is replaced by version 4 in its middle."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs
from reward_services import ScriptedService, scored_by

from swift_rlx.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Replaced:
    """Serves `v3`, and `v4` after a number of calls, in a thread of its own. `served`: versions, a call each."""

    def __init__(self, after: int) -> None:
        self.served: list[str] = []
        self._after = after
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )

    def __enter__(self) -> Replaced:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with ScriptedService(self._answer) as service:
            self.url = service.url
            self._ready.set()
            await self._stop.wait()

    def _answer(self, request: dict[str, Any] | None) -> Any:
        version = "v3" if len(self.served) < self._after else "v4"
        if request is None:
            offer = {
                "name": "helpful",
                "version": version,
                "required": ["row"],
                "optional": [],
                "takes_any": False,
            }
            return 200, {"rewards": [offer]}, {}
        status, body, headers = scored_by(version, 100.0 if version == "v4" else 0.0)(request)
        if status == 200:
            assert all(list(row["columns"]) == ["row"] for row in request["rows"])
            self.served.append(version)
        return status, body, headers


@pytest.fixture
def service() -> Iterator[Replaced]:
    with Replaced(after=6) as served:
        yield served


def test_a_served_reward_is_replaced_without_a_stop_and_both_versions_are_seen(
    service: Replaced,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"{service.url}/helpful@v3,v4"
    picked_up, records, said = (
        pipeline_runs.PickedUp(monkeypatch),
        Records(monkeypatch),
        lines_said(monkeypatch),
    )
    trainer = pipeline_runs.train(
        tiny_model,
        write_rows(24),
        tmp_path / "out",
        reward_funcs=[address],
        reward_version_change="rescore",
        reward_normalize="zscore",
        log_completions=True,
        max_steps=8,
    )

    assert trainer.state.global_step == 8
    assert service.served == sorted(service.served), "never back to the version before"
    assert set(service.served) == {"v3", "v4"}
    versions = [batch.versions["helpful"] for batch in picked_up.batches]
    assert versions == sorted(versions)
    assert set(versions) == {"v3", "v4"}, "both trained"
    for batch, version in zip(picked_up.batches, versions, strict=True):
        scores = [row.rewards[0] for row in batch.rows if not row.is_filler]
        assert all((score >= 100) == (version == "v4") for score in scores), "no mixed batch"
    means = [
        line["reward/helpful/mean"]
        for line in runs.log_lines(tmp_path / "out")
        if "reward/helpful/mean" in line
    ]
    assert means[0] < 100.0 <= means[-1]
    [(count, mean, _)] = trainer.reward_combiner.state().values()
    assert count <= versions.count("v4") * len(picked_up.batches[0].rows), "statistics of v4 alone"
    assert mean >= 100

    assert records.versions == versions, "each trajectory keeps the version of its score"
    table = completions_table(tmp_path / "out")
    assert {told for told, _ in table} == {"helpful=v3", "helpful=v4"}
    assert all((score >= 100) == (told == "helpful=v4") for told, score in table)
    first_of_v4 = versions.index("v4") + 1
    assert f"rewards that were replaced: helpful v3 from step 1, v4 from step {first_of_v4}" in said


class Records:
    """`versions`: of the reward, by batch, from the trajectories that the pipeline hands to the trainer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from swift_rlx.trainers.pipeline import RolloutPipeline

        self.versions: list[str] = []
        pick_up = RolloutPipeline.pick_up

        def kept(pipeline: Any) -> Any:
            batch, picked = pick_up(pipeline)
            parts = [
                part for group in batch.groups for one in group.group.members for part in one.score.breakdown
            ]
            assert all((part.value >= 100) == (part.version == "v4") for part in parts)
            [version] = {part.version for part in parts}
            self.versions.append(version)
            return batch, picked

        monkeypatch.setattr(RolloutPipeline, "pick_up", kept)


def lines_said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the run tells in its log."""
    from swift_rlx.trainers import monitoring

    said: list[str] = []
    monkeypatch.setattr(monitoring.logger, "info", lambda text, *_: said.append(str(text)))
    return said


def completions_table(output: Path) -> list[tuple[str, float]]:
    """Versions and score of each logged completion."""
    lines = [
        json.loads(line) for line in (output / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [pair for one in lines for pair in zip(one["reward_versions"], one["helpful"], strict=True)]


def test_a_service_that_is_not_there_is_refused_before_the_model_is_loaded(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"http://127.0.0.1:9 cannot be reached.*swift-rlx reward serve --reward helpful"
    ):
        pipeline_runs.train(
            tiny_model,
            write_rows(),
            tmp_path / "out",
            reward_funcs=["http://127.0.0.1:9/helpful@v3"],
            max_steps=1,
        )
