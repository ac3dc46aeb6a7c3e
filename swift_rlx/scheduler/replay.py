"""A snapshot brought forward by the journal, and what the replay of its batches means for a run.

The trainer goes back to the weights of the checkpoint. Everything else was decided and paid for, and is taken from the
journal: batches that were picked up since then are handed to the trainer again, in the same order, with the same
groups, log-probs, versions and loss masks; groups that were ready are ready; what had not come that far is generated
again. Not in the journal: rewards that are computed at the pick-up, and the counters of failures and retries since.

While batches are replayed, the trainer's weights are older than those that made the groups which wait for it; they
are handed out only when it has reached the step at which they were ready. Until the replayed batches and what is open
fit into the places that the bound allows (`capacity.py`), nothing is generated: it would be over age when its turn
comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from swift_rlx.errors import CheckpointError
from swift_rlx.scheduler.ending import fate_of_dropped
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, Entry, PickedUp, Scored
from swift_rlx.scheduler.resume import OpenPrompt, RolloutState
from swift_rlx.types import DropReason, Fate, TrajectoryGroup


def advance(state: RolloutState, entries: Iterable[Entry]) -> RolloutState:
    """The snapshot with what happened since. Raises `CheckpointError` for entries that do not follow it."""
    history = _History(state)
    try:
        for entry in entries:
            history.take(entry)
    except KeyError as error:
        raise CheckpointError(
            f"the journal speaks of group {error}, which is not open after the checkpoint; move the journal away to"
            " go on from the checkpoint alone"
        ) from error
    return history.state()


@dataclass(slots=True, eq=False)
class _History:
    """The parts of a snapshot that entries change."""

    before: RolloutState
    open: dict[int, OpenPrompt] = field(init=False)
    tokens: dict[Fate, int] = field(init=False)
    dropped: dict[DropReason, int] = field(init=False)
    replay: list[PickedUp] = field(init=False)
    admitted: int = 0
    regenerated: int = 0

    def __post_init__(self) -> None:
        self.open = {one.order: one for one in self.before.open}
        self.tokens = dict.fromkeys(Fate, 0) | dict(self.before.tokens)
        self.dropped = dict(self.before.dropped)
        self.replay = list(self.before.replay)

    def take(self, entry: Entry) -> None:
        """One thing more has happened. Raises `KeyError` for a group that is not open, or not ready."""
        match entry:
            case Admitted():
                self.admitted += 1
                self.open[entry.order] = OpenPrompt(entry.index, entry.epoch, entry.order, rounds=1)
            case Scored():
                self._scored(entry)
            case Dropped():
                one = self.open.pop(entry.order)
                self._replaced(one)
                self._found(one, entry.lost)
                self.tokens[fate_of_dropped(entry.reason)] += entry.tokens
                self.dropped[entry.reason] = self.dropped.get(entry.reason, 0) + 1
            case PickedUp():
                for order in entry.orders:
                    if self.open[order].ready is None:
                        raise KeyError(order)
                self.replay.append(entry)

    def _scored(self, entry: Scored) -> None:
        group, one = entry.group, self.open[entry.group.order]
        self._replaced(one)
        self._found(one, entry.lost)
        self.open[group.order] = replace(one, rounds=group.rounds, ready=group, held=0, lost=entry.lost)
        self.tokens[Fate.IN_FLIGHT] += sampled_tokens(group)

    def _replaced(self, one: OpenPrompt) -> None:
        """An earlier round of it, if there is one, was over age."""
        if one.ready is not None:
            self.regenerated += 1
            self.tokens[Fate.IN_FLIGHT] -= sampled_tokens(one.ready)
            self.tokens[Fate.OVER_AGE] += sampled_tokens(one.ready)

    def _found(self, one: OpenPrompt, lost: Mapping[Fate, int]) -> None:
        """Tokens that were taken for cut went on into its answers, or are among the `lost` ones."""
        self.tokens[Fate.CUT] -= one.held
        for fate, tokens in lost.items():
            self.tokens[fate] += tokens - one.lost.get(fate, 0)

    def state(self) -> RolloutState:
        """The snapshot of now."""
        before, capacity = self.before, self.before.capacity
        return replace(
            before,
            open=tuple(self.open[order] for order in sorted(self.open)),
            capacity=replace(
                capacity,
                admitted=capacity.admitted + self.admitted,
                dropped=capacity.dropped + sum(self.dropped.values()) - sum(before.dropped.values()),
            ),
            dropped=self.dropped,
            regenerated=before.regenerated + self.regenerated,
            tokens=self.tokens,
            replay=tuple(self.replay),
        )


def sampled_tokens(group: TrajectoryGroup) -> int:
    """Tokens of a group that the policy made."""
    return sum(member.completion.num_sampled for member in group.members)
