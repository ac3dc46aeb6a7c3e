"""Batches from which nothing can be learned are told, and a run of nothing else ends (scenarios B 20 and B 23)."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_rlx.errors import RewardError
from swift_rlx.trainers import rollout_metrics
from swift_rlx.trainers.rollout_metrics import MOST_BATCHES_IN_VAIN, RolloutMetricsMixin

FIRST, SECOND = [5, 6, 7], [5, 6, 8]


class Base:
    def _prepare_metrics(self) -> None:
        self._metrics: Any = {"train": defaultdict(list)}


class Trainer(RolloutMetricsMixin, Base):
    args = SimpleNamespace(temperature=0.9)

    def __init__(self, num_generations: int = 2) -> None:
        self.num_generations = num_generations
        self._prepare_metrics()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(rollout_metrics.logger, "warning", said.append)
    return said


def alone(values: torch.Tensor) -> torch.Tensor:
    return values


def test_one_seed_for_all_completions_is_warned_about_when_it_begins(warnings: list[str]) -> None:
    trainer = Trainer()
    for _ in range(3):
        trainer.warn_of_repeats([FIRST, FIRST, SECOND, SECOND], alone)
    assert ["2 completions of each prompt" in text and "one seed for all" in text for text in warnings] == [
        True
    ]
    trainer.warn_of_repeats([FIRST, FIRST, FIRST, SECOND], alone)
    trainer.warn_of_repeats([FIRST, FIRST, SECOND, SECOND], alone)
    assert len(warnings) == 2


def test_completions_of_other_ranks_belong_to_the_group(warnings: list[str]) -> None:
    def others(last: list[int]) -> Any:
        def gather(mine: torch.Tensor) -> torch.Tensor:
            return torch.cat([mine, Trainer.digests([last])])

        return gather

    Trainer(4).warn_of_repeats([FIRST, FIRST, FIRST], others(SECOND))
    assert not warnings
    Trainer(4).warn_of_repeats([FIRST, FIRST, FIRST], others(FIRST))
    assert len(warnings) == 1


def test_single_completions_cannot_repeat_each_other(warnings: list[str]) -> None:
    Trainer(1).warn_of_repeats([FIRST, FIRST], alone)
    assert not warnings


def test_a_run_whose_batches_have_nothing_to_train_on_ends() -> None:
    trainer = Trainer()
    for trains in [False] * (MOST_BATCHES_IN_VAIN - 1) + [True] + [False] * (MOST_BATCHES_IN_VAIN - 1):
        trainer.note_trained(trains)
    with pytest.raises(
        RewardError, match="10 generation batches in a row had no token to train on: rewards were"
    ):
        trainer.note_trained(False)
