"""Deadlines, loss masks and the choice of the next batch, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from swift_rlx.errors import StalenessError
from swift_rlx.scheduler import RolloutConfig, StaleTokens, TrainOrder
from swift_rlx.scheduler.ready import ReadyBuffer, hand_over, loss_mask, make_ready
from swift_rlx.types import Completion, FinishReason, Prompt, Score, Trajectory, TrajectoryGroup


def config(**changes):
    defaults = {"batch_groups": 2, "group_size": 2, "min_members": 1, "max_staleness": 2}
    return RolloutConfig(**{**defaults, **changes})


def group(order, *members, rewards=None):
    """A group whose members have tokens made under these steps."""
    prompt = Prompt(order, np.zeros(1, dtype=np.int32))
    rewards = rewards or [1.0] * len(members)
    return TrajectoryGroup(
        prompt,
        order,
        tuple(
            Trajectory(prompt, number, _completion(steps), Score(reward))
            for number, (steps, reward) in enumerate(zip(members, rewards, strict=True))
        ),
    )


def _completion(steps):
    """`steps`: of the weights that made each token; None for one of the environment."""
    count = len(steps)
    sampled = np.array([step is not None for step in steps])
    return Completion(
        np.zeros(count, dtype=np.int32),
        np.zeros(count, dtype=np.float32),
        np.array([-1 if step is None else step for step in steps], dtype=np.int32),
        FinishReason.STOP,
        sampled=None if sampled.all() else sampled,
    )


def picked(settings, step, count, *groups):
    buffer = ReadyBuffer(settings)
    for one in groups:
        buffer.add(make_ready(one, settings))
    return [ready.group.order for ready in buffer.pick(step, count)]


def test_tokens_over_the_bound_leave_the_mask():
    member = group(0, [3, 4, 5, 6]).members[0]
    assert loss_mask(member, 6, config()).tolist() == [False, True, True, True]
    assert loss_mask(member, 6, config(max_staleness=0)).tolist() == [False, False, False, True]


def test_under_drop_the_whole_answer_leaves():
    settings = config(stale_tokens=StaleTokens.DROP)
    member = group(0, [3, 4, 5]).members[0]
    assert loss_mask(member, 5, settings).tolist() == [True] * 3
    assert loss_mask(member, 6, settings).tolist() == [False] * 3


@pytest.mark.parametrize("stale", StaleTokens)
def test_tokens_of_the_environment_never_train_and_make_no_answer_old(stale):
    settings = config(stale_tokens=stale)
    one = group(0, [5, None, 6])
    assert loss_mask(one.members[0], 6, settings).tolist() == [True, False, True]
    ready = make_ready(one, settings)
    assert ready.deadline == (8 if stale is StaleTokens.MASK else 7)
    assert sorted(ready.tokens_by_step) == [(5, 1), (6, 1)]


def test_an_unscored_answer_trains_no_token():
    member = group(0, [5, 5], rewards=[None]).members[0]
    assert loss_mask(member, 5, config()).tolist() == [False, False]


@pytest.mark.parametrize(
    ("stale", "min_members", "deadline"),
    [
        (StaleTokens.MASK, 1, 9),  # the newest token is of step 7
        (StaleTokens.DROP, 1, 7),  # the answer that begins at 5
        (StaleTokens.DROP, 2, 5),  # the second one begins at 3
    ],
)
def test_a_group_keeps_as_long_as_enough_of_it_may_train(stale, min_members, deadline):
    settings = config(stale_tokens=stale, min_members=min_members)
    assert make_ready(group(0, [3, 7], [5, 6]), settings).deadline == deadline


def test_unscored_members_do_not_keep_a_group():
    assert make_ready(group(0, [3], [7], rewards=[1.0, None]), config()).deadline == 5


def test_a_group_past_its_deadline_is_not_handed_over():
    ready = make_ready(group(0, [3]), config())
    assert hand_over(ready, 5, config()).loss_masks[0].tolist() == [True]
    with pytest.raises(StalenessError, match="picked at optimizer step 6, but it keeps until 5"):
        hand_over(ready, 6, config())


def test_the_group_that_loses_most_by_waiting_goes_first():
    settings = config()
    # At step 4 tokens of step 2 are in their last moment: group 1 has three of them, group 2 one.
    chosen = picked(settings, 4, 2, group(0, [4, 4]), group(1, [2, 2, 2, 4]), group(2, [2, 4]))
    assert chosen == [1, 2]


def test_without_anything_to_lose_the_order_is_that_of_completion():
    assert picked(config(), 4, 2, group(5, [4]), group(3, [4]), group(4, [4])) == [5, 3]


def test_a_deadline_goes_before_a_greater_loss():
    # Group 0 loses two tokens but keeps two steps more; groups 1 and 2 end with this pick-up.
    assert picked(config(), 4, 2, group(0, [2, 2, 4]), group(1, [2]), group(2, [2])) == [1, 2]


def test_no_more_groups_are_left_than_the_next_pick_ups_can_take():
    # Three groups are due at the next pick-up, which takes two; so one of them goes now.
    due_next = [group(order, [3]) for order in (1, 2, 3)]
    greater_loss = [group(order, [2, 2, 4]) for order in (4, 5)]
    assert picked(config(), 4, 2, *greater_loss, *due_next) == [1, 4]


def test_expired_groups_are_taken_out():
    buffer = ReadyBuffer(config())
    for one in (group(0, [1]), group(1, [1, 3])):
        buffer.add(make_ready(one, config()))
    assert [ready.group.order for ready in buffer.take_expired(4)] == [0]
    assert len(buffer) == 1


def test_in_admission_order_only_the_unbroken_beginning_is_available():
    settings = config(train_order=TrainOrder.ADMISSION)
    buffer = ReadyBuffer(settings)
    for order in (3, 0, 1):
        buffer.add(make_ready(group(order, [4]), settings))
    assert buffer.available(oldest_open=2) == 2
    assert buffer.available(oldest_open=None) == 3
    assert [ready.group.order for ready in buffer.pick(4, 2)] == [0, 1]
