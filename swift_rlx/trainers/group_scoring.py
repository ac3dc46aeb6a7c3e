"""Scoring in the pipeline: one group at a time, while the trainer trains.

A reward runs in one of three places:

    async function                                the pipeline's event loop
    sync function                                 a thread of its own
    reward model, `scope="batch"`, an alarm set   late: the trainer's main thread, when the batch is picked up

That a reward sets an alarm, as verifiers do to limit their time, is known of ms-swift's, and of others seen at their
first call.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

from swift.utils import get_logger

from swift_rlx.errors import ConfigError
from swift_rlx.integration.reward_names import Checked, sets_alarm
from swift_rlx.rewards import AlarmWatch
from swift_rlx.trainers.reward_calls import calls_of
from swift_rlx.trainers.spread_filter import SpreadFilter
from swift_rlx.types import Completion, Prompt, RewardPart, Score, TrajectoryGroup

logger = get_logger()
SAY_EVERY_S = 60.0
"""How often a reward is named that a group waits for."""


def is_late(reward: Checked | None) -> bool:
    """Whether a reward (None: a reward model) is known to score only when a batch is picked up."""
    return reward is None or reward.spec.scope == "batch" or sets_alarm(reward.spec)


class GroupScorer:
    """Scores the completions of a prompt with the rewards that can run beside the training.

    `rewards`: None in the place of a reward model. `spread`: turns groups away, where every reward is scored here.
    `has_environment`: conversations bring a reward of their own. `late`: the columns that are left to the pick-up; it
    grows when a reward turns out to need the main thread.
    """

    def __init__(
        self,
        rewards: Sequence[Checked | None],
        encoder: Any,
        trainer_state: Any,
        spread: SpreadFilter | None = None,
        has_environment: bool = False,
    ) -> None:
        self.spread = spread
        self.on_scored: Callable[[str, float, float, int], None] = lambda name, begin_s, end_s, rows: None
        self._has_environment = has_environment
        self.late = {at for at, reward in enumerate(rewards) if is_late(reward)}
        self._rewards = rewards
        self._encoder = encoder
        self._trainer_state = trainer_state
        self._watch = AlarmWatch()
        self._calls = {
            at: calls_of(reward, self._watch)
            for at, reward in enumerate(rewards)
            if reward is not None and at not in self.late
        }
        self._failed: deque[tuple[str, int]] = deque()
        self._said_s: dict[str, float] = {}

    def go_on_from(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Groups that an earlier start scored: what they lack was late there, and is late here too."""
        for group in groups:
            for member in group.members:
                scored = {part.name for part in member.score.breakdown}
                self.late |= {
                    at for at, one in enumerate(self._rewards) if one is not None and one.name not in scored
                }

    @property
    def _has_more(self) -> bool:
        """Whether rewards come in beside those that are scored here."""
        return bool(self.late) or self._has_environment

    def watching(self) -> Any:
        """A context in which rewards that need the main thread are noticed."""
        return self._watch.installed()

    async def __call__(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
        """One score a completion. Raises what a reward raises under `--reward_on_error raise`.

        Raises ConfigError where `--dynamic_sample` has no say any more, because a reward turns out to be late.
        """
        samples = [sample_of(self._encoder, prompt, completion) for completion in completions]
        now = [at for at in range(len(self._rewards)) if at not in self.late]
        columns = _columns(samples, self._trainer_state)
        values = await asyncio.gather(*(self._timed(at, samples, columns) for at in now))
        by_column = {at: column for at, column in zip(now, values, strict=True) if column is not None}
        scores = [self._one_score(row, by_column) for row in range(len(completions))]
        if self.spread is not None:
            self.spread.check(scores)
        return scores

    async def _timed(self, at: int, samples: list[Any], columns: dict[str, Any]) -> list[float | None] | None:
        begin_s, name = time.monotonic(), self._rewards[at].name
        waiting = asyncio.ensure_future(self._say_what_is_waited_for(name, begin_s))
        try:
            values = await self._score(at, samples, columns)
        finally:
            waiting.cancel()
        self.on_scored(name, begin_s, time.monotonic(), len(samples))
        return values

    async def _say_what_is_waited_for(self, name: str, begin_s: float) -> None:
        """Once for all the groups that wait for the same reward."""
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            now_s = time.monotonic()
            if now_s - self._said_s.get(name, begin_s) >= SAY_EVERY_S:
                self._said_s[name] = now_s
                logger.warning(f"a group has waited {now_s - begin_s:.0f} s for the reward {name}")

    async def _score(self, at: int, samples: list[Any], columns: dict[str, Any]) -> list[float | None] | None:
        """None where the reward is late from now on."""
        scored = await self._calls[at].score([sample.messages[-1]["content"] for sample in samples], columns)
        if scored.needs_main_thread:
            self._make_late(at)
        if at in self.late:
            return None
        self._failed.append((self._rewards[at].name, scored.counters.failed))
        return scored.values

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

    def _one_score(self, row: int, by_column: dict[int, list[float | None]]) -> Score:
        parts = tuple(
            RewardPart(self._rewards[at].name, column[row], self._rewards[at].spec.version or "")
            for at, column in sorted(by_column.items())
        )
        is_scored = self._has_more or any(part.value is not None for part in parts)
        return Score(0.0 if is_scored else None, parts)

    def take_failures(self) -> Counter[str]:
        """Rows that failed here since the last call, by the name of the reward. From any thread."""
        taken: Counter[str] = Counter()
        while self._failed:
            name, rows = self._failed.popleft()
            taken[name] += rows
        return taken

    def close(self) -> None:
        """No more scoring; a reward that still runs is left behind."""
        for calls in self._calls.values():
            calls.close()


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
