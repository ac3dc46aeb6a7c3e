"""The score stage: groups are scored independently, so a slow one holds up nobody."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Scores up to `score_concurrency` groups at a time. An error of the scorer ends the run."""

    def __init__(self, state: RunState, score: Scorer) -> None:
        self.running = 0
        self._state = state
        self._score = score

    def step(self) -> None:
        """Begin with the groups that wait, oldest first, as far as there is a place."""
        state = self._state
        while state.to_score and self.running < state.config.score_concurrency:
            self.running += 1
            state.supervisor.spawn(self._run(state.to_score.popleft()))

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
            self.running -= 1
            state.events.score.set()
        record = group.record(_by_member(group, members, scores), state.clock.now())
        if len(trainable(record)) < state.config.min_members:
            state.drop(group, record, DropReason.TOO_FEW_SCORED)
            return
        state.drops_in_a_row = 0
        state.book.ready(group)
        state.ready.add(make_ready(record, state.config))
        state.note(Scored(record))
        state.events.train.set()


def _by_member(group: OpenGroup, members: Sequence[int], scores: Sequence[Score]) -> dict[int, Score]:
    if len(scores) != len(members):
        raise RewardError(
            f"the scorer returned {len(scores)} scores for {len(members)} completions of prompt"
            f" {group.prompt.key}; it has to return one for each"
        )
    return dict(zip(members, scores, strict=True))
