"""The order of admission: a function of (seed, epoch, index), from wherever a run goes on."""

import numpy as np
import pytest

from swift_rlx.trainers.epoch_order import EpochOrder, EpochPrompts, batches_at
from swift_rlx.trainers.epoch_sampler import EpochSampler
from swift_rlx.types import Prompt

ROWS, BATCH, SEED, EPOCHS = 11, 3, 5, 3


def admitted(
    count: int, position: int = 0, *, shuffle: bool = True, seed: int = SEED
) -> list[tuple[int, int]]:
    """(epoch, row) of the next `count` prompts."""

    def encode(row: int, epoch: int) -> Prompt:
        return Prompt(row, np.zeros(1, np.int32), epoch=epoch)

    source = EpochPrompts(EpochOrder(ROWS, BATCH, seed, shuffle), encode, position)
    found = [source.next().key for _ in range(count)]
    assert source.position == position + count
    assert not source.is_exhausted
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_prompts_are_admitted_in_the_order_of_the_trainers_sampler(shuffle: bool) -> None:
    sampler = EpochSampler(range(ROWS), 1, BATCH, 1, shuffle=shuffle, seed=SEED)
    expected = [(epoch, row) for epoch in range(EPOCHS) for row in sampler]
    assert len(expected) == EPOCHS * 9, "whole batches, each prompt once an epoch"
    assert len(set(expected)) == len(expected)
    assert admitted(len(expected), shuffle=shuffle) == expected


def test_a_resumed_run_goes_on_with_the_same_order() -> None:
    whole = admitted(30)
    for position in range(30):
        assert admitted(30 - position, position) == whole[position:], f"from {position}"
    assert admitted(9, seed=6) != whole[:9]
    assert [row for _, row in whole[:9]] != [row for _, row in whole[9:18]]


@pytest.mark.parametrize("accumulation", [1, 2, 3, 5])
@pytest.mark.parametrize("per_generation", [1, 2, 4])
def test_the_batches_before_a_step_are_those_that_a_trainer_picks_up(
    accumulation: int, per_generation: int
) -> None:
    """An epoch's last optimizer step takes what is left of its micro-batches; a batch is taken at its first one."""
    per_epoch, picked, before = 5, 0, []
    for _ in range(EPOCHS):
        micro_batches = range(per_epoch * per_generation)
        for begin in range(0, len(micro_batches), accumulation):
            before.append(picked)
            picked += sum(not at % per_generation for at in micro_batches[begin : begin + accumulation])
    found = [batches_at(step, accumulation, per_generation, per_epoch) for step in range(len(before))]
    assert found == before
