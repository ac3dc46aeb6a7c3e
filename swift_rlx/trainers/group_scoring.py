"""Scoring in the pipeline: one group at a time, while the trainer trains.

Rewards of the whole batch score in `batch_scoring`. Late ones, models that all ranks ask together and rewards
that turn out to need the main thread, score there when a batch is picked up. Where the others run, `reward_crew` says.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from swift.utils import get_logger

from swift_rlx.errors import ConfigError
from swift_rlx.rewards import RewardCounters
from swift_rlx.rewards.execution import NeedsMainThread
from swift_rlx.rewards.reward_loop import RewardLoop
from swift_rlx.rewards.runner import Scored
from swift_rlx.rewards.version_watch import VersionChange, VersionWatch
from swift_rlx.trainers.reward_crew import RunReward
from swift_rlx.trainers.spread_filter import SpreadFilter
from swift_rlx.types import Completion, Prompt, RewardPart, Score, TrainBatch, TrainGroup, TrajectoryGroup

logger = get_logger()
SAY_EVERY_S = 60.0
"""How often a reward is named that a group waits for."""


def is_late(reward: RunReward | None) -> bool:
    """Whether a reward (None: a model of all ranks) is known to score only in the main thread, at the pick-up."""
    return reward is None or reward.runner is None


def is_of_groups(reward: RunReward | None) -> bool:
    """Whether a reward scores a group as soon as its answers are there."""
    return reward is not None and not is_late(reward) and reward.spec.scope == "group"


@dataclass(frozen=True)
class OneVersion:
    """A batch whose rows have one version of each reward; `left_out`: (epoch, index) of groups that do not train."""

    batch: TrainBatch
    versions: dict[str, str]
    left_out: frozenset[tuple[int, int]] = frozenset()


class GroupScorer:
    """Scores the completions of a prompt with the rewards that can run beside the training.

    `rewards`: None in the place of a model that all ranks ask together. `spread`: turns groups away, where every reward
    is scored here. `has_environment`: conversations bring a reward of their own. `versions`: notices changed
    rewards. `late`: columns that are left to the pick-up; it grows when a reward turns out to need the main thread.
    """

    def __init__(
        self,
        rewards: Sequence[RunReward | None],
        encoder: Any,
        trainer_state: Any,
        spread: SpreadFilter | None = None,
        has_environment: bool = False,
        versions: VersionWatch | None = None,
    ) -> None:
        self.spread = spread
        self.on_scored: Callable[[str, float, float, int], None] = lambda name, begin_s, end_s, rows: None
        self._has_environment = has_environment
        self.late = {at for at, reward in enumerate(rewards) if is_late(reward)}
        self.on_group: Callable[[], None] = lambda: None
        """Told, in the loop, after a group has become ready or was turned away."""
        self._rewards = rewards
        self._encoder = encoder
        self._trainer_state = trainer_state
        self._versions = versions or VersionWatch(VersionChange.STOP)
        self._counters: deque[tuple[str, RewardCounters]] = deque()
        self._said_s: dict[str, float] = {}

    def go_on_from(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Groups that an earlier start scored: what they lack was late there, and is late here too."""
        for group in groups:
            for member in group.members:
                scored = {part.name for part in member.score.breakdown}
                self.late |= {
                    at for at, one in enumerate(self._rewards) if is_of_groups(one) and one.name not in scored
                }

    @property
    def _has_more(self) -> bool:
        """Whether rewards come in beside those that are scored here."""
        return bool(self.late or self.of_batches()) or self._has_environment

    async def __call__(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
        """One score a completion. Raises what a reward raises under `--reward_on_error raise`.

        Raises ConfigError where `--dynamic_sample` has no say any more, because a reward turns out to be late.
        """
        scores = await self._scores(prompt, completions)
        asyncio.get_running_loop().call_soon(self.on_group)
        if self.spread is not None:
            self.spread.check(scores)
        return scores

    async def _scores(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
        samples = [sample_of(self._encoder, prompt, completion) for completion in completions]
        now = [at for at, one in enumerate(self._rewards) if at not in self.late and is_of_groups(one)]
        by_column = await self._by_column(now, samples)
        return [self._one_score(row, by_column) for row in range(len(completions))]

    async def _by_column(self, now: Sequence[int], samples: list[Any]) -> dict[int, Scored]:
        columns = _columns(samples, self._trainer_state)
        found = await asyncio.gather(*(self._timed(at, samples, columns) for at in now))
        return {at: scored for at, scored in zip(now, found, strict=True) if scored is not None}

    async def _timed(self, at: int, samples: list[Any], columns: dict[str, Any]) -> Scored | None:
        begin_s, name = time.monotonic(), self._rewards[at].name
        waiting = asyncio.ensure_future(self._say_what_is_waited_for(name, begin_s))
        try:
            scored = await self._score(at, samples, columns)
        finally:
            waiting.cancel()
        self.on_scored(name, begin_s, time.monotonic(), len(samples))
        return scored

    async def _say_what_is_waited_for(self, name: str, begin_s: float) -> None:
        """Once for all the groups that wait for the same reward."""
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            now_s = time.monotonic()
            if now_s - self._said_s.get(name, begin_s) >= SAY_EVERY_S:
                self._said_s[name] = now_s
                logger.warning(f"a group has waited {now_s - begin_s:.0f} s for the reward {name}")

    async def _score(self, at: int, samples: list[Any], columns: dict[str, Any]) -> Scored | None:
        """None where the reward is late from now on."""
        reward = self._rewards[at]
        try:
            scored = await reward.score_beside(
                [sample.messages[-1]["content"] for sample in samples], columns
            )
        except NeedsMainThread:
            self._make_late(at)
        if at in self.late:
            return None
        self._versions.see(reward.name, scored.version)
        self._counters.append((reward.name, scored.counters))
        return scored

    def _make_late(self, at: int) -> None:
        name = self._rewards[at].name
        if self.spread is not None:
            raise ConfigError(
                f"--dynamic_sample true cannot be used in the pipeline with {name}, which sets an alarm signal and so"
                " can only score in the main thread, when a batch is picked up; drop it, or use --async_rollout false"
            )
        if at not in self.late:
            self.late.add(at)
            logger.warning(
                f"the reward {name} sets an alarm signal, which only works in the main thread: from now on it scores"
                " when a batch is picked up, not beside the training"
            )

    def _one_score(self, row: int, by_column: dict[int, Scored]) -> Score:
        parts = tuple(
            RewardPart(self._rewards[at].name, scored.values[row], scored.version)
            for at, scored in sorted(by_column.items())
        )
        is_scored = self._has_more or any(part.value is not None for part in parts)
        return Score(0.0 if is_scored else None, parts)

    def take_counters(self) -> dict[str, RewardCounters]:
        """What happened here since the last call, by the name of the reward. From any thread."""
        taken: dict[str, RewardCounters] = {}
        while self._counters:
            name, counters = self._counters.popleft()
            taken.setdefault(name, RewardCounters()).add(counters)
        return taken

    # --- rewards of a whole batch ----------------------------------------------------------------------------------

    def of_batches(self) -> list[int]:
        """Columns of the rewards of a whole batch that score beside the training."""
        return [
            at
            for at, one in enumerate(self._rewards)
            if one is not None and one.spec.scope == "batch" and at not in self.late
        ]

    def named(self, found: Mapping[int, Scored]) -> list[tuple[str, Scored]]:
        """With the rewards' names in the place of their columns."""
        return [(self._rewards[at].name, scored) for at, scored in sorted(found.items())]

    def begin_batch(self, groups: Sequence[TrajectoryGroup]) -> Future[dict[int, Scored]]:
        """Score the answers of these groups, in their order, by the rewards of a whole batch; from any thread."""
        return self._loop.submit(self._score_batch(groups))

    async def _score_batch(self, groups: Sequence[TrajectoryGroup]) -> dict[int, Scored]:
        answers = [(group.prompt, one.completion) for group in groups for one in group.members]
        samples = [sample_of(self._encoder, prompt, completion) for prompt, completion in answers]
        return await self._by_column(self.of_batches(), samples)

    def is_current(self, found: Mapping[int, Scored]) -> bool:
        """Whether the rewards still have the versions that scored."""
        return all(scored.version == self._rewards[at].version for at, scored in found.items())

    def trained_by(self, found: Mapping[int, Scored]) -> dict[str, str]:
        """A batch with these scores trains; their versions by reward."""
        versions = {name: scored.version for name, scored in self.named(found)}
        self._versions.trained(versions)
        return versions

    # --- a batch that is picked up ---------------------------------------------------------------------------------

    def of_one_version(self, batch: TrainBatch) -> OneVersion:
        """The batch without a mixture of versions: answers of others are scored again or left out, as was chosen.

        In the trainer's thread; waits for what is scored again. Raises what that raises, and RewardError where the
        reward goes on to change.
        """
        found: dict[str, set[str]] = {}
        for group in batch.groups:
            for name, version in _versions_in(group.group):
                found.setdefault(name, set()).add(version)
        target = self._versions.target(found)
        old = [
            at
            for at, group in enumerate(batch.groups)
            if any(target[name] != version for name, version in _versions_in(group.group))
        ]
        left_out: frozenset[tuple[int, int]] = frozenset()
        if old and self._versions.choice is VersionChange.RESCORE:
            batch, target = self._rescored(batch, old)
        elif old:
            left_out = frozenset(batch.groups[at].group.prompt.key for at in old)
            logger.warning(f"{len(old)} groups do not train: they were scored by a version before {target}")
        self._versions.trained(target)
        return OneVersion(batch, target, left_out)

    def _rescored(self, batch: TrainBatch, old: Sequence[int]) -> tuple[TrainBatch, dict[str, str]]:
        logger.info(f"{len(old)} groups are scored again, by the rewards' new versions")
        groups = list(batch.groups)
        for at in old:
            groups[at] = with_scores(groups[at], self._wait_for_scores(groups[at].group))
        found = {pair for group in groups for pair in _versions_in(group.group)}
        versions = dict(found)
        if len(versions) < len(found):  # it has changed again: now all of them are of an old version
            return self._rescored(replace(batch, groups=tuple(groups)), self._of_old_versions(groups))
        return replace(batch, groups=tuple(groups)), versions

    def _of_old_versions(self, groups: Sequence[TrainGroup]) -> list[int]:
        return [
            at
            for at, group in enumerate(groups)
            if any(self._versions.newest(name) != version for name, version in _versions_in(group.group))
        ]

    def _wait_for_scores(self, group: TrajectoryGroup) -> list[Score]:
        scoring = self._scores(group.prompt, [member.completion for member in group.members])
        return self._loop.submit(scoring).result()

    @property
    def _loop(self) -> RewardLoop:
        return next(one.loop for one in self._rewards if one is not None)


def _versions_in(group: TrajectoryGroup) -> set[tuple[str, str]]:
    return {(part.name, part.version) for member in group.members for part in member.score.breakdown}


def with_scores(group: TrainGroup, scores: Sequence[Score]) -> TrainGroup:
    """The group with these scores in the place of its own, one for each member."""
    members = tuple(
        replace(member, score=score) for member, score in zip(group.group.members, scores, strict=True)
    )
    return replace(group, group=replace(group.group, members=members))


def sample_of(encoder: Any, prompt: Prompt, completion: Completion) -> Any:
    """The row with the completion as its answer, as rewards see it."""
    sample = encoder.sample(dict(prompt.columns))
    sample.prompt_id = f"prompt_{prompt.epoch}_{prompt.index}"
    sample.request_id = f"{sample.prompt_id}_{uuid4().hex}"  # a prompt may be generated again
    return encoder.answer(
        sample,
        completion.token_ids.tolist(),
        completion.logprobs.tolist(),
        completion.finish_reason.value,
        completion.info.get("turns", ""),
    )


def _columns(samples: list[Any], trainer_state: Any) -> dict[str, Any]:
    """The keyword arguments that ms-swift gives to reward functions."""
    from swift.dataset import RowPreprocessor

    rows = [sample.to_reward_row() for sample in samples]
    return {"trainer_state": trainer_state} | RowPreprocessor.rows_to_batched(rows)
