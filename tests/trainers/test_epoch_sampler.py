"""The order of prompts is a function of seed and epoch."""

import pytest
from trl.trainer.utils import RepeatSampler

from swift_rlx.trainers.epoch_sampler import EpochSampler

SHAPE = {"mini_repeat_count": 2, "batch_size": 3, "repeat_count": 2, "seed": 5}


def test_a_run_from_the_start_sees_the_parents_order() -> None:
    ours, theirs = EpochSampler(range(7), **SHAPE), RepeatSampler(range(7), **SHAPE)
    for _ in range(4):
        assert list(ours) == list(theirs)


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_any_epoch_can_be_entered_directly(epoch: int) -> None:
    straight, resumed = EpochSampler(range(7), **SHAPE), EpochSampler(range(7), **SHAPE)
    orders = [list(straight) for _ in range(epoch + 2)]
    resumed.epoch = epoch
    assert list(resumed) == orders[epoch]
    assert list(resumed) == orders[epoch + 1]
    assert orders[epoch] != orders[epoch + 1]


def test_without_shuffling_every_epoch_is_the_data_sets_order() -> None:
    sampler = EpochSampler(range(6), **SHAPE | {"shuffle": False})
    assert list(sampler) == list(sampler) == [0, 0, 1, 1, 2, 2] * 2 + [3, 3, 4, 4, 5, 5] * 2
