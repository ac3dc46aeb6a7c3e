"""Assembly of groups: K members each, every prompt ends exactly once.

    GENERATING --all members ended--> SCORING --scored--> READY --picked up--> TRAINED
        |  ^                             |                 |
        |  +--- all of it over age ------|-----------------+
        +--> DROPPED <-------------------+          any state --the run ends--> CARRIED

A member ends with a completion or fails for good. A group whose members have all ended is scored if enough of them
have a completion, else dropped; one that cannot get enough any more is told so at once, and its remaining
requests are worth ending. An illegal transition raises `SchedulingError`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from swift_rlx.errors import SchedulingError
from swift_rlx.types import Completion, DropReason, Fate, Prompt, Score, Trajectory, TrajectoryGroup


class GroupState(enum.Enum):
    """Where a group is."""

    GENERATING = "generating"
    SCORING = "scoring"
    READY = "ready"
    TRAINED = "trained"
    DROPPED = "dropped"
    CARRIED = "carried over"


_ALLOWED = {
    GroupState.GENERATING: {GroupState.SCORING, GroupState.DROPPED, GroupState.CARRIED},
    GroupState.SCORING: {GroupState.READY, GroupState.DROPPED, GroupState.CARRIED},
    GroupState.READY: {GroupState.GENERATING, GroupState.TRAINED, GroupState.CARRIED},
}


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A group that has not ended. Changed by `GroupBook` only."""

    prompt: Prompt
    order: int
    size: int
    min_members: int
    state: GroupState = GroupState.GENERATING
    rounds: int = 1
    start_step: int | None = None
    """Optimizer step of the weights when the first request of this round was sent."""
    completions: dict[int, Completion] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    draft_tokens: int = 0
    """What there is of answers that are not finished."""
    lost: Counter[Fate] = field(default_factory=Counter)
    """Tokens that were made for it and that no answer of it has, since its admission."""
    has_witnesses: bool = False
    """Whether a member was on a worker that died, and got nowhere (`blame.py`)."""
    is_suspected: bool = False
    """Whether one was on several."""
    has_killed: bool = False
    """Whether a member was given up because its workers died of it."""

    @property
    def has_ended_generating(self) -> bool:
        return len(self.completions) + len(self.failed) == self.size

    @property
    def is_hopeless(self) -> bool:
        """Whether too many members failed."""
        return self.size - len(self.failed) < self.min_members

    @property
    def num_tokens(self) -> int:
        """Generated tokens of its answers."""
        return sum(one.num_sampled for one in self.completions.values())

    @property
    def held_tokens(self) -> int:
        """Generated tokens of its answers, finished or not."""
        return self.num_tokens + self.draft_tokens

    def record(self, scores: Mapping[int, Score] | None = None, scored_s: float = 0.0) -> TrajectoryGroup:
        """What it has now; `scores` by member, the others are unscored."""
        scores = scores or {}
        return TrajectoryGroup(
            prompt=self.prompt,
            order=self.order,
            members=tuple(
                Trajectory(
                    prompt=self.prompt,
                    member=member,
                    completion=self.completions[member],
                    score=scores.get(member, Score(None)),
                    scored_s=scored_s,
                    attempts=self.attempts[member],
                )
                for member in sorted(self.completions)
            ),
            failed=len(self.failed),
            rounds=self.rounds,
        )


class GroupBook:
    """The open groups by number of admission, and counters of how groups ended."""

    def __init__(self, group_size: int, min_members: int) -> None:
        self.trained = 0
        self.carried = 0
        self.carried_tokens = 0
        """Held by groups that were carried over."""
        self.regenerated = 0
        self.dropped: Counter[DropReason] = Counter()
        self._size = group_size
        self._min_members = min_members
        self._open: dict[int, OpenGroup] = {}
        self._keys: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[OpenGroup]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, prompt: Prompt, order: int) -> OpenGroup:
        """Open the group of a prompt. Raises `SchedulingError` where it is open already."""
        if prompt.key in self._keys or order in self._open:
            raise SchedulingError(f"prompt {prompt.key} was admitted twice")
        group = OpenGroup(prompt, order, self._size, self._min_members)
        self._open[order] = group
        self._keys.add(prompt.key)
        return group

    def restore(self, prompt: Prompt, order: int, rounds: int, record: TrajectoryGroup | None) -> OpenGroup:
        """Open a group that was open before a restart; with its `record` it is ready, without it begins again."""
        group = self.admit(prompt, order)
        group.rounds = rounds
        if record is not None:
            group.completions = {one.member: one.completion for one in record.members}
            group.attempts.update({one.member: one.attempts for one in record.members})
            missing = set(range(group.size)) - set(group.completions)
            group.failed = dict.fromkeys(missing, "failed before the restart")
            group.state = GroupState.READY
        return group

    def drafted(self, group: OpenGroup, tokens: int) -> None:
        """An unfinished answer has so many tokens more, or fewer."""
        group.draft_tokens += tokens

    def lost(self, group: OpenGroup, fate: Fate, tokens: int) -> None:
        """Tokens that were made for it are in none of its answers."""
        if tokens:
            group.lost[fate] += tokens

    def complete(self, group: OpenGroup, member: int, completion: Completion) -> None:
        """A member has its answer."""
        self._check_member(group, member)
        group.completions[member] = completion

    def fail(self, group: OpenGroup, member: int, reason: str) -> None:
        """A member will have no answer."""
        self._check_member(group, member)
        group.failed[member] = reason

    def scoring(self, group: OpenGroup) -> None:
        """Its completions are being scored."""
        self._move(group, GroupState.SCORING)

    def ready(self, group: OpenGroup) -> None:
        """It waits for the trainer."""
        self._move(group, GroupState.READY)

    def restart(self, group: OpenGroup) -> None:
        """All of it was over age: generate it again, in the place that it has."""
        self._move(group, GroupState.GENERATING)
        group.rounds += 1
        group.start_step = None
        group.completions.clear()
        group.attempts.clear()
        group.has_witnesses = group.is_suspected = group.has_killed = False
        group.failed.clear()
        self.regenerated += 1

    def train(self, order: int) -> OpenGroup:
        """It was picked up."""
        group = self._end(order, GroupState.TRAINED)
        self.trained += 1
        return group

    def drop(self, group: OpenGroup, reason: DropReason) -> None:
        """It ends without training."""
        self._end(group.order, GroupState.DROPPED)
        self.dropped[reason] += 1

    def carry_over(self) -> list[OpenGroup]:
        """The run ends: all open groups, in the order of their admission."""
        groups = [self._end(order, GroupState.CARRIED) for order in sorted(self._open)]
        self.carried += len(groups)
        self.carried_tokens += sum(group.held_tokens for group in groups)
        return groups

    def get(self, order: int) -> OpenGroup:
        """An open group by its number."""
        return self._open[order]

    @property
    def held_tokens(self) -> int:
        """Tokens whose fate is open: of groups that were neither trained nor dropped."""
        return self.carried_tokens + sum(group.held_tokens for group in self)

    def oldest_not_ready(self) -> int | None:
        """Lowest number among the groups that are not ready."""
        # Groups are kept in the order of their admission, so the first one found is the oldest.
        return next((one.order for one in self._open.values() if one.state is not GroupState.READY), None)

    def check(self, admitted: int) -> None:
        """Raise `SchedulingError` unless admitted = trained + dropped + carried over + open."""
        dropped = sum(self.dropped.values())
        if admitted != self.trained + dropped + self.carried + len(self._open):
            raise SchedulingError(
                f"{admitted} prompts were admitted, but {self.trained} trained, {dropped} were dropped,"
                f" {self.carried} carried over and {len(self._open)} are open"
            )

    def _check_member(self, group: OpenGroup, member: int) -> None:
        if group.state is not GroupState.GENERATING or self._open.get(group.order) is not group:
            raise SchedulingError(f"prompt {group.prompt.key} got an answer while {group.state.value}")
        if member in group.completions or member in group.failed:
            raise SchedulingError(f"member {member} of prompt {group.prompt.key} ended twice")

    def _move(self, group: OpenGroup, state: GroupState) -> None:
        if state not in _ALLOWED.get(group.state, ()):
            raise SchedulingError(
                f"prompt {group.prompt.key} cannot go from {group.state.value} to {state.value}"
            )
        group.state = state

    def _end(self, order: int, state: GroupState) -> OpenGroup:
        group = self._open.get(order)
        if group is None:
            raise SchedulingError(f"group {order} ended twice")
        self._move(group, state)
        del self._open[order]
        self._keys.remove(group.prompt.key)
        return group
