"""Scored groups that wait for the trainer, and the choice among them.

A group keeps until its deadline: the last optimizer step at which it can be picked up with a token to train.

- Tokens over age leave the mask (`mask`): its newest token's step + max_staleness.
- Whole answers over age leave (`drop`): the same for the member that keeps longest with enough members left.

By `completion` the trainer gets the groups that would lose most tokens by waiting for the next pick-up, the
rest in the order of completion, as far as the deadlines allow: after the choice, no more groups may be due within
the next j pick-ups than those can take; groups that are being made again count with their deadlines before they
are ready. By `admission` it gets the groups admitted first, and waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from swift_rlx.errors import StalenessError
from swift_rlx.scheduler.config import RolloutConfig, StaleTokens, TrainOrder
from swift_rlx.types import BoolArray, TrainGroup, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, eq=False)
class ReadyGroup:
    """A scored group with what the choice needs: its deadline, and its tokens by optimizer step."""

    group: TrajectoryGroup
    deadline: int
    tokens_by_step: tuple[tuple[int, int], ...]

    def losing(self, first: int, past: int) -> int:
        """Tokens made under steps first <= step < past."""
        return sum(count for step, count in self.tokens_by_step if first <= step < past)


def trainable(group: TrajectoryGroup) -> list[Trajectory]:
    """Members with a reward."""
    return [member for member in group.members if member.score.reward is not None]


def loss_mask(member: Trajectory, step: int, config: RolloutConfig) -> BoolArray:
    """[T] which tokens train when the batch is picked up at optimizer step `step`."""
    steps = member.completion.policy_steps
    if member.score.reward is None:
        return np.zeros(len(steps), dtype=np.bool_)
    young: BoolArray = steps >= step - config.max_staleness
    if member.completion.sampled is not None:
        young &= member.completion.sampled
    if config.stale_tokens is StaleTokens.DROP and int(young.sum()) < member.completion.num_sampled:
        young[:] = False
    return young


def make_ready(group: TrajectoryGroup, config: RolloutConfig) -> ReadyGroup:
    """A group that enough members were scored of."""
    steps = [member.completion.sampled_steps for member in trainable(group)]
    if config.stale_tokens is StaleTokens.DROP:
        oldest = sorted((int(one[0]) for one in steps), reverse=True)
        keeps_until = oldest[config.min_members - 1]
    else:
        keeps_until = max(int(one[-1]) for one in steps)
    found, counts = np.unique(np.concatenate(steps), return_counts=True)
    by_step = tuple(zip(found.tolist(), counts.tolist(), strict=True))
    return ReadyGroup(group, keeps_until + config.max_staleness, by_step)


def hand_over(ready: ReadyGroup, step: int, config: RolloutConfig) -> TrainGroup:
    """The group with its loss masks. Raises `StalenessError` for one past its deadline."""
    if step > ready.deadline:
        raise StalenessError(
            f"prompt {ready.group.prompt.key} was picked at optimizer step {step}, but it keeps until"
            f" {ready.deadline} under max_staleness {config.max_staleness}"
        )
    return TrainGroup(ready.group, tuple(loss_mask(member, step, config) for member in ready.group.members))


class ReadyBuffer:
    """Holds ready groups by the number of their admission."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._groups: dict[int, ReadyGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def groups(self) -> Iterable[ReadyGroup]:
        """All groups, in the order of completion."""
        return self._groups.values()

    def add(self, ready: ReadyGroup) -> None:
        """A group was scored."""
        self._groups[ready.group.order] = ready

    def take(self, orders: Iterable[int]) -> list[ReadyGroup]:
        """Remove and return the groups with these numbers, in this order."""
        return [self._groups.pop(order) for order in orders]

    def take_expired(self, step: int) -> list[ReadyGroup]:
        """Remove and return the groups that cannot be picked at `step` any more."""
        expired = [ready for ready in self._groups.values() if ready.deadline < step]
        return self.take(ready.group.order for ready in expired)

    def take_older(self, step: int, kept: Collection[int] = ()) -> list[ReadyGroup]:
        """Remove and return the groups with a token made before `step`, but for those with the numbers `kept`."""
        older = [
            ready for order, ready in self._groups.items() if order not in kept and ready.losing(0, step)
        ]
        return [self._groups.pop(ready.group.order) for ready in older]

    def available(self, oldest_open: int | None) -> int:
        """How many groups may be picked; `oldest_open`: lowest number of a group that is not ready."""
        if self._config.train_order is TrainOrder.COMPLETION or oldest_open is None:
            return len(self._groups)
        return sum(order < oldest_open for order in self._groups)

    def pick(
        self, step: int, count: int, picks_left: int = 0, awaited: Sequence[int] = ()
    ) -> list[ReadyGroup]:
        """Remove and return the groups of `choose`."""
        return self.take(one.group.order for one in self.choose(step, count, picks_left, awaited))

    def choose(
        self, step: int, count: int, picks_left: int = 0, awaited: Sequence[int] = ()
    ) -> list[ReadyGroup]:
        """`count` groups for the pick-up at `step`.

        `picks_left`: further pick-ups of the same step. `awaited`: deadlines of groups that are not ready and must
        find a place at one of the next pick-ups.
        """
        if self._config.train_order is TrainOrder.ADMISSION:
            return [self._groups[order] for order in sorted(self._groups)[:count]]
        return self._most_urgent(step, count, picks_left, awaited)

    def _most_urgent(
        self, step: int, count: int, picks_left: int, awaited: Sequence[int]
    ) -> list[ReadyGroup]:
        config = self._config
        first, past = step - config.max_staleness, step - config.max_staleness + config.steps_per_batch
        line = sorted(self._groups.values(), key=lambda ready: -ready.losing(first, past))
        again_first = sorted(line, key=lambda ready: ready.group.rounds == 1)
        chosen: dict[int, ReadyGroup] = {}
        for level in range(config.max_staleness // config.steps_per_batch + 1):
            due = [ready for ready in again_first if config.level(ready.deadline, step) <= level]
            awaits = sum(config.level(deadline, step) <= level for deadline in awaited)
            already = sum(ready.group.order in chosen for ready in due)
            later = (picks_left + config.picks_after(step, level)) * config.batch_groups
            _fill(chosen, due, already, min(len(due) + awaits - later, count - len(chosen) + already))
        _fill(chosen, line, len(chosen), count)
        return list(chosen.values())


def _fill(chosen: dict[int, ReadyGroup], line: list[ReadyGroup], already: int, wanted: int) -> None:
    """Choose from the line, in its order, until `wanted` of it are chosen; `already` are."""
    for ready in line:
        if already >= wanted:
            return
        if ready.group.order not in chosen:
            chosen[ready.group.order] = ready
            already += 1
