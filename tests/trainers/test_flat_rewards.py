"""Rewards without spread are counted, and a run that goes on so is told (scenario D 47)."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_rlx.trainers import rollout_metrics
from swift_rlx.trainers.rollout_metrics import WARN_AFTER_BATCHES_WITHOUT_SPREAD, RolloutMetricsMixin


class Base:
    def _prepare_metrics(self) -> None:
        self._metrics: Any = {"train": defaultdict(list)}


class Trainer(RolloutMetricsMixin, Base):
    model = SimpleNamespace(training=True)
    num_generations = min_group_size = 2

    def batch(self, *rewards: float) -> None:
        values = torch.tensor(rewards)
        rollout = SimpleNamespace(rewards_N=values, valid_N=~values.isnan(), is_training=True)
        self._record_spread(rollout)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(rollout_metrics.logger, "warning", said.append)
    return said


def trainer() -> Trainer:
    made = Trainer()
    made._prepare_metrics()
    return made


def test_the_share_of_groups_without_spread_is_logged(warnings: list[str]) -> None:
    one = trainer()
    one.batch(1.0, 1.0, 0.0, 1.0)
    assert one._metrics["train"]["groups/no_spread"] == [0.5]
    assert one._metrics["train"]["reward_std"] == [0.25], "and is no NaN"
    assert not warnings


def test_a_warning_comes_once_after_some_flat_batches_in_a_row(warnings: list[str]) -> None:
    one = trainer()
    for _ in range(WARN_AFTER_BATCHES_WITHOUT_SPREAD - 1):
        one.batch(1.0, 1.0, 0.0, 0.0)
    one.batch(1.0, 0.0, 0.0, 0.0)
    for _ in range(WARN_AFTER_BATCHES_WITHOUT_SPREAD - 1):
        one.batch(1.0, 1.0, 0.0, 0.0)
    assert not warnings, "a batch with spread between them"
    for _ in range(3):
        one.batch(1.0, 1.0, 0.0, 0.0)
    assert ["there is nothing to learn from" in text for text in warnings] == [True]
