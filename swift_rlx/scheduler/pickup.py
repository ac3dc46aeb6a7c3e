"""The train stage's side of the scheduler: what the trainer picks up, and when it has to wait.

A group that is over age as a whole is generated again, once, under weights at least as new as the trainer's were
then: from then on the trainer does not take a batch after which the pick-ups up to its deadline could not hold
it, but waits for it. So no prompt is lost to the bound, and none is made for ever.

After a restart the batches of the journal come first, as they were (`replay.py`).
"""

from __future__ import annotations

import numpy as np

from swift_rlx.errors import CheckpointError, SchedulingError
from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome
from swift_rlx.scheduler.generation import Generation
from swift_rlx.scheduler.groups import GroupState
from swift_rlx.scheduler.journal_entries import PickedUp
from swift_rlx.scheduler.ready import ReadyGroup, hand_over
from swift_rlx.scheduler.state import RunState
from swift_rlx.scheduler.wait_filler import WaitFiller
from swift_rlx.types import Fate, TrainBatch, TrainGroup, TrajectoryGroup


class PickUp:
    """Forms generation batches out of ready groups."""

    def __init__(self, state: RunState, generation: Generation) -> None:
        self._state = state
        self._generation = generation

    def try_pick(self, waited_s: float, waited: bool, filler: WaitFiller | None = None) -> TrainBatch | None:
        """A batch for the trainer's current step, or None while it has to wait. Smaller at the end only.

        Without groups where the `filler` lets the trainer take stored ones instead of waiting.
        """
        state, step = self._state, self._state.version.step
        if state.replay:
            return self._again(step, may_fill=filler is not None)
        self._send_back(state.ready.take_expired(step))
        count = self._batch_size()
        picks_left, awaited = state.capacity.picks_left(step), self._awaited()
        available = state.ready.available(state.book.oldest_not_ready())
        if not count or available < count or self._must_wait(step, picks_left, awaited):
            if filler is not None and not self.is_finished and filler.decide():
                return self._leave_to_store(waited_s)
            self._check_progress(step)
            return None
        chosen = state.ready.pick(step, count, picks_left, awaited)
        orders = tuple(ready.group.order for ready in chosen)
        unfinished = sum(one.state is not GroupState.READY for one in state.book)
        has_filled = filler is not None and filler.has_filled  # it would have waited otherwise
        picked = PickedUp(step, orders, unfinished, waited or has_filled)
        state.note(picked)
        return self._hand_over(chosen, picked, waited_s)

    def foreseen(self) -> list[TrajectoryGroup]:
        """The groups of the next batch if it is made of what is ready now; none while that is not enough.

        What is scored or sent back until then may change the choice.
        """
        state = self._state
        step, picks_left = state.capacity.next_pick(state.version.step)
        count, oldest_open = self._batch_size(), state.book.oldest_not_ready()
        if state.replay or not count or state.ready.available(oldest_open) < count:
            return []
        if any(ready.deadline < step for ready in state.ready.groups()):
            return []
        chosen = state.ready.choose(step, count, picks_left, self._awaited())
        return [ready.group for ready in chosen]

    def _batch_size(self) -> int:
        """Groups of the next batch: fewer than the others have where no more will come."""
        state = self._state
        if state.has_admitted_all and state.book.oldest_not_ready() is None:
            return min(state.config.batch_groups, len(state.ready))
        return state.config.batch_groups

    def _leave_to_store(self, waited_s: float) -> TrainBatch:
        """A batch without groups, which changes nothing but the journal: the step goes on."""
        step = self._state.version.step
        unfinished = sum(one.state is not GroupState.READY for one in self._state.book)
        self._state.note(PickedUp(step, (), unfinished, waited=True))
        return TrainBatch(step, (), waited_s)

    def _again(self, step: int, may_fill: bool) -> TrainBatch:
        """The batch that the trainer took at this step before the restart."""
        picked = self._state.replay.popleft()
        if not picked.orders and not may_fill:
            raise CheckpointError(
                f"after the checkpoint a stored batch was trained at optimizer step {picked.step} to fill a wait;"
                " resume with --fill_the_wait true, or move the journal away to go on from the checkpoint alone"
            )
        if picked.step != step:
            raise CheckpointError(
                f"the trainer asks for a batch at optimizer step {step}, but after the checkpoint it took the next one"
                f" at step {picked.step}; resume with the settings that the checkpoint was made with, or move the"
                " journal away to go on from the checkpoint alone"
            )
        if not picked.orders:
            return TrainBatch(step, ())
        return self._hand_over(self._state.ready.take(picked.orders), picked, waited_s=0.0)

    def _hand_over(self, chosen: list[ReadyGroup], picked: PickedUp, waited_s: float) -> TrainBatch:
        state, step = self._state, picked.step
        groups = tuple(hand_over(ready, step, state.config) for ready in chosen)
        for group in groups:
            self._settle(group, step)
            state.book.train(group.group.order)
            state.on_end(GroupEnd(group.group, GroupOutcome.TRAINED))
        state.capacity.pick(len(groups), step, picked.unfinished, picked.waited)
        state.events.generate.set()
        return TrainBatch(step, groups, waited_s)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left that could ever train."""
        return self._state.has_admitted_all and not len(self._state.book)

    def refresh(self) -> int:
        """Have ready groups with a token older than the trainer's weights generated again; returns how many.

        Not those that were trained before a restart, in batches that come again.
        """
        trained = {order for picked in self._state.replay for order in picked.orders}
        older = self._state.ready.take_older(self._state.version.step, trained)
        self._send_back(older)
        return len(older)

    def _send_back(self, groups: list[ReadyGroup]) -> None:
        state = self._state
        for ready in groups:
            tokens = sum(member.completion.num_sampled for member in ready.group.members)
            state.ledger.settle(Fate.OVER_AGE, tokens)
            state.on_end(GroupEnd(ready.group, GroupOutcome.OVER_AGE))
            self._generation.regenerate(state.book.get(ready.group.order))

    def _awaited(self) -> list[int]:
        """Earliest deadlines of the groups that are being made again, in order."""
        bound = self._state.config.max_staleness
        return sorted(
            group.start_step + bound
            for group in self._state.book
            if group.rounds > 1 and group.state is not GroupState.READY and group.start_step is not None
        )

    def _must_wait(self, step: int, picks_left: int, awaited: list[int]) -> bool:
        """Whether this pick-up would leave too few for the groups that are being made again."""
        config = self._state.config
        for number, deadline in enumerate(awaited, start=1):
            level = config.level(deadline, step)
            later = picks_left + config.picks_after(step, level) if level >= 0 else 0
            if number > later * config.batch_groups:
                return True
        return False

    def _check_progress(self, step: int) -> None:
        """Raise `SchedulingError` where only weights that the trainer has not published could help it."""
        state, config = self._state, self._state.config
        if (
            state.live == state.version
            and state.capacity.is_full
            and len(state.book) < config.batch_groups
            and not state.has_admitted_all
        ):
            raise SchedulingError(
                f"the trainer asks for another batch at optimizer step {step} without publishing weights: with"
                f" batches_per_step {config.batches_per_step} and steps_per_batch {config.steps_per_batch},"
                f" max_staleness {config.max_staleness} admits no more; publish after every optimizer step"
            )

    def _settle(self, group: TrainGroup, step: int) -> None:
        ledger = self._state.ledger
        for member, mask in zip(group.group.members, group.loss_masks, strict=True):
            total, trained = member.completion.num_sampled, int(mask.sum())
            ledger.settle(Fate.TRAINED, trained)
            fate = Fate.FAILED if member.score.reward is None else Fate.OVER_AGE
            ledger.settle(fate, total - trained)
            ages = step - member.completion.policy_steps[mask]
            for age, count in enumerate(np.bincount(ages).tolist()):
                if count:
                    self._state.staleness[age] += count
