"""The score stage: groups are scored independently, so a slow one holds up nobody."""

from __future__ import annotations

from swift_rlx.errors import RewardError
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.ready import make_ready, trainable
from swift_rlx.scheduler.state import RunState, Scorer
from swift_rlx.types import DropReason, Score, Trajectory, TrajectoryGroup


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

    async def _run(self, open_group: OpenGroup) -> None:
        members = sorted(open_group.completions)
        completions = [open_group.completions[member] for member in members]
        try:
            scores = await self._score(open_group.prompt, completions)
        finally:
            self.running -= 1
            self._state.events.score.set()
        if len(scores) != len(completions):
            raise RewardError(
                f"the scorer returned {len(scores)} scores for {len(completions)} completions of prompt"
                f" {open_group.prompt.key}; it has to return one for each"
            )
        self._finish(open_group, members, list(scores))

    def _finish(self, open_group: OpenGroup, members: list[int], scores: list[Score]) -> None:
        state, now = self._state, self._state.clock.now()
        group = TrajectoryGroup(
            prompt=open_group.prompt,
            order=open_group.order,
            members=tuple(
                Trajectory(
                    prompt=open_group.prompt,
                    member=member,
                    completion=open_group.completions[member],
                    score=score,
                    scored_s=now,
                    attempts=open_group.attempts[member],
                )
                for member, score in zip(members, scores, strict=True)
            ),
            failed=len(open_group.failed),
            rounds=open_group.rounds,
        )
        if len(trainable(group)) < state.config.min_members:
            state.drop(open_group, DropReason.TOO_FEW_SCORED)
            return
        state.book.ready(open_group)
        state.ready.add(make_ready(group, state.config))
        state.events.train.set()
