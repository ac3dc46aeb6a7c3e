"""The train stage's side of the scheduler: what the trainer picks up, and when it has to wait.

A group that is over age as a whole is generated again, once: from then on the trainer does not take the step that
would make it over age a second time, but waits for it. So no prompt is lost to the bound, and none is made for ever.
"""

from __future__ import annotations

import numpy as np

from swift_rlx.scheduler.generation import Generation
from swift_rlx.scheduler.groups import GroupState
from swift_rlx.scheduler.ready import hand_over
from swift_rlx.scheduler.state import RunState
from swift_rlx.types import Fate, TrainBatch, TrainGroup


class PickUp:
    """Forms generation batches out of ready groups."""

    def __init__(self, state: RunState, generation: Generation) -> None:
        self._state = state
        self._generation = generation

    def try_pick(self, waited_s: float, waited: bool) -> TrainBatch | None:
        """A batch for the trainer's current step, or None while it has to wait. Smaller at the end only."""
        state, step = self._state, self._state.version.step
        self._send_back_expired(step)
        count = state.config.batch_groups
        if state.has_admitted_all and state.book.oldest_not_ready() is None:
            count = min(count, len(state.ready))
        if not count or state.ready.available(state.book.oldest_not_ready()) < count or self._must_wait(step):
            return None
        picked = state.ready.pick(step, count)
        groups = tuple(hand_over(ready, step, state.config) for ready in picked)
        for group in groups:
            self._settle(group, step)
            state.on_end(state.book.train(group.group.order), group.group)
        unfinished = sum(one.state is not GroupState.READY for one in state.book)
        state.capacity.pick(len(groups), step, unfinished, waited)
        state.events.generate.set()
        return TrainBatch(step, groups, waited_s)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left that could ever train."""
        return self._state.has_admitted_all and not len(self._state.book)

    def _send_back_expired(self, step: int) -> None:
        state = self._state
        for ready in state.ready.take_expired(step):
            tokens = sum(member.completion.num_tokens for member in ready.group.members)
            state.ledger.settle(Fate.OVER_AGE, tokens)
            self._generation.regenerate(state.book.get(ready.group.order))

    def _must_wait(self, step: int) -> bool:
        """Whether this pick-up would make a group over age that was so once already."""
        config = self._state.config
        return any(
            group.rounds > 1
            and group.state is not GroupState.READY
            and group.start_step is not None
            and group.start_step + config.max_staleness < step + config.steps_per_batch
            for group in self._state.book
        )

    def _settle(self, group: TrainGroup, step: int) -> None:
        ledger = self._state.ledger
        for member, mask in zip(group.group.members, group.loss_masks, strict=True):
            total, trained = member.completion.num_tokens, int(mask.sum())
            ledger.settle(Fate.TRAINED, trained)
            fate = Fate.FAILED if member.score.reward is None else Fate.OVER_AGE
            ledger.settle(fate, total - trained)
            ages = step - member.completion.policy_steps[mask]
            for age, count in enumerate(np.bincount(ages).tolist()):
                if count:
                    self._state.staleness[age] += count
