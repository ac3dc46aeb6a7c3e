"""A real run whose rewards are a served reward model, an ensemble and a plugin; workers come and go meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pipeline_runs
import pytest
from tiny_reward_model import save_reward_model, scores

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT_S = 120.0
SIZES = {2: 2, 5: 1}
"""Workers from this batch on; one at the start."""


class Service:
    """`swift-rlx reward serve` as a user starts it, with two random reward models."""

    def __init__(self, folder: Path) -> None:
        self.models = [save_reward_model(folder / name, seed) for name, seed in (("helpful", 3), ("safe", 4))]
        one, other = self.models
        command = "from swift_rlx.cli.main import main; raise SystemExit(main())"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", command, "reward", "serve", "--version", "v1", "--port", "0"),
                *("--reward", f"helpful=model:{one}", f"safe=wco(model:{one}, model:{other})", "vowels"),
                *("--external-plugins", str(pipeline_runs.PLUGIN)),
                *("--loader-options", json.dumps({"model_type": "llama", "template": "chatml"})),
            ],
            cwd=Path(__file__).resolve().parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = [self._process.stdout.readline().split()[-1] for _ in range(3)]
        self.addresses = {address.rpartition("/")[2].partition("@")[0]: address for address in said}
        self.url = said[0].rpartition("/")[0]

    def health(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/health", timeout=LIMIT_S) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def resize(self, workers: int) -> None:
        """Returns when there are so many, and they can score."""
        body = json.dumps({"workers": workers}).encode()
        with urlopen(Request(f"{self.url}/v1/workers", body, method="POST"), timeout=LIMIT_S) as reply:
            assert json.load(reply) == {"workers": workers}
        until = time.monotonic() + LIMIT_S
        while (found := self.health())["ready"] != workers or found["workers"] != workers:
            assert time.monotonic() < until, found
            time.sleep(0.1)

    def close(self) -> None:
        self._process.terminate()
        assert self._process.wait(LIMIT_S) == 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "models")
    yield made
    made.close()


def test_a_served_reward_model_scores_a_run_while_workers_are_added_and_removed(
    service: Service,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from swift_rlx.trainers import async_rollout

    picked_up, sizes = pipeline_runs.PickedUp(monkeypatch), []
    decode = async_rollout.decode_batch

    def decode_and_resize(message: bytes) -> Any:
        batch = decode(message)
        if (size := SIZES.get(len(picked_up.batches))) is not None:
            service.resize(size)
            sizes.append(size)
        return batch

    monkeypatch.setattr(async_rollout, "decode_batch", decode_and_resize)
    names = ["helpful", "safe", "vowels"]
    trainer = pipeline_runs.train(
        tiny_model,
        write_rows(24),
        tmp_path / "out",
        reward_funcs=[service.addresses[name] for name in names],
        log_completions=True,
        max_steps=7,
    )

    assert (trainer.state.global_step, sizes) == (7, [2, 1])
    assert {name: trainer.reward_versions[name] for name in names} == dict.fromkeys(names, "v1")
    tables = (tmp_path / "out" / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(tables) >= 7, "the last one is written once more at the end"
    for table in map(json.loads, tables):
        of_models = [scores(model, table) for model in service.models]
        assert table["helpful"] == pytest.approx(of_models[0], abs=1e-4)
        assert table["safe"] == pytest.approx([min(pair) for pair in zip(*of_models, strict=True)], abs=1e-4)
        vowels = [
            sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in table["completion"]
        ]
        assert table["vowels"] == pytest.approx(vowels)
