"""The score stage: groups are scored independently, so a slow one holds up nobody."""

from __future__ import annotations

from collections.abc import Sequence

from swift_rlx.clock import Timer
from swift_rlx.errors import RewardError
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.journal_entries import Scored
from swift_rlx.scheduler.ready import make_ready, trainable
from swift_rlx.scheduler.state import RunState, Scorer
from swift_rlx.types import DropReason, Score


class GroupRejected(Exception):
    """Raised by a scorer that does not want a group to train, as dynamic sampling does with one without spread.

    The group ends as dropped for `reason`, with its `scores`, one for each completion; its place goes to another
    prompt.
    """

    def __init__(self, reason: DropReason, scores: Sequence[Score], detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.scores = scores


class Scoring:
    """Scores up to `score_concurrency` groups at a time. An error of the scorer ends the run.

    So does one that takes longer than `score_limit_s`. Groups may wait for each other inside the scorer, as for a
    reward that takes one at a time; so only the time counts in which none is left whose scoring began before.
    """

    def __init__(self, state: RunState, score: Scorer) -> None:
        self._state = state
        self._score = score
        self._running: dict[
            int, OpenGroup
        ] = {}  # by their number of admission, in the order in which they began
        self._watched: int | None = None
        self._limit: Timer | None = None

    def step(self) -> None:
        """Begin with the groups that wait, oldest first, as far as there is a place."""
        state = self._state
        while state.to_score and len(self._running) < state.config.score_concurrency:
            group = state.to_score.popleft()
            self._running[group.order] = group
            state.supervisor.spawn(self._run(group))
        self._watch()

    async def _run(self, group: OpenGroup) -> None:
        state, members = self._state, sorted(group.completions)
        completions = [group.completions[member] for member in members]
        try:
            scores = await self._score(group.prompt, completions)
        except GroupRejected as rejected:
            record = group.record(_by_member(group, members, rejected.scores), state.clock.now())
            state.drop(group, record, rejected.reason, str(rejected))
            return
        finally:
            del self._running[group.order]
            self._watch()
            state.events.score.set()
        record = group.record(_by_member(group, members, scores), state.clock.now())
        if len(trainable(record)) < state.config.min_members:
            state.drop(group, record, DropReason.TOO_FEW_SCORED)
            return
        state.book.ready(group)
        state.ready.add(make_ready(record, state.config))
        state.note(Scored(record, dict(group.lost)))
        state.events.train.set()

    def _watch(self) -> None:
        """Begin to count for the group whose scoring began first, unless it is counted for already."""
        first = next(iter(self._running), None)
        if first == self._watched:
            return
        if self._limit is not None:
            self._limit.cancel()
        self._watched = first
        if first is not None:
            self._limit = self._state.clock.call_later(self._state.config.score_limit_s, self._took_too_long)

    def _took_too_long(self) -> None:
        group, limit_s = next(iter(self._running.values())), self._state.config.score_limit_s
        self._state.supervisor.fail(
            RewardError(
                f"the {len(group.completions)} answers to prompt {group.prompt.key} were not scored within"
                f" {limit_s:g} s: a reward hangs or is too slow; give it a limit of its own"
            )
        )


def _by_member(group: OpenGroup, members: Sequence[int], scores: Sequence[Score]) -> dict[int, Score]:
    if len(scores) != len(members):
        raise RewardError(
            f"the scorer returned {len(scores)} scores for {len(members)} completions of prompt"
            f" {group.prompt.key}; it has to return one for each"
        )
    return dict(zip(members, scores, strict=True))
