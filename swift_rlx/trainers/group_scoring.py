"""Scoring in the pipeline: one group at a time, while the trainer trains.

A reward runs in one of three places, told apart by `place_rewards` and, for verifiers that set SIGALRM, while it runs:

    async function                        the pipeline's event loop
    sync function                         a thread
    reward model, `scope="batch"`, SIGALRM    late: the trainer's main thread, when the batch is picked up
"""

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from swift.utils import get_logger

from swift_rlx.integration.reward_names import Checked
from swift_rlx.rewards import AsyncCheckedReward, combine_rewards
from swift_rlx.scheduler import GroupRejected
from swift_rlx.types import Completion, DropReason, Prompt, RewardPart, Score, TrajectoryGroup

logger = get_logger()


class AlarmWatch:
    """Notices a reward that sets an alarm outside of the main thread, where Python refuses it.

    Verifiers such as math-verify catch that refusal and call every answer wrong, so it must not go unseen.
    """

    def __init__(self) -> None:
        self._noticed = threading.local()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the pipeline runs, `signal.signal` tells this object of attempts from other threads."""
        original = signal.signal

        def watched(signalnum: Any, handler: Any) -> Any:
            if signalnum == signal.SIGALRM and threading.current_thread() is not threading.main_thread():
                self._noticed.alarm = True
            return original(signalnum, handler)

        signal.signal = watched
        try:
            yield
        finally:
            signal.signal = original

    def call(self, function: Any, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
        """What the function returned, and whether it tried to set an alarm."""
        self._noticed.alarm = False
        result = function(*args, **kwargs)
        return result, self._noticed.alarm


class SpreadFilter:
    """`--dynamic_sample`: groups of equal rewards have no gradient and make room for other prompts.

    `weights`: of the rewards. `limit`: how many groups may be turned away between two pick-ups; then they train.
    """

    def __init__(self, weights: torch.Tensor, limit: int) -> None:
        self._weights = weights.cpu()
        self._limit = limit
        self._rejected = 0

    def picked_up(self) -> None:
        """A batch was taken: count again."""
        self._rejected = 0

    def check(self, scores: Sequence[Score]) -> None:
        """Raise `GroupRejected` for a group without spread."""
        values = [
            [math.nan if part.value is None else part.value for part in score.breakdown] for score in scores
        ]
        combined = combine_rewards(torch.tensor(values, dtype=torch.float32), self._weights)
        valid = combined.rewards_B[combined.valid_B]
        if len(valid) == 0 or valid.max() > valid.min():
            return
        self._rejected += 1
        if self._rejected <= self._limit:
            raise GroupRejected(DropReason.NO_SPREAD, scores)
        if self._rejected == self._limit + 1:
            logger.warning(
                f"{self._limit} groups were turned away for equal rewards since the last batch"
                " (--max_resample_times): the next ones train as they are"
            )


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
        threads: int = 4,
    ) -> None:
        self.spread = spread
        self.on_scored: Callable[[str, float, float, int], None] = lambda name, begin_s, end_s, rows: None
        self._has_environment = has_environment
        self.late = {
            at for at, reward in enumerate(rewards) if reward is None or reward.spec.scope == "batch"
        }
        self._rewards = rewards
        self._encoder = encoder
        self._trainer_state = trainer_state
        self._pool = ThreadPoolExecutor(threads, "swift-rlx-reward")
        self._watch = AlarmWatch()
        self._one_at_a_time = [threading.Lock() for _ in rewards]

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
        """One score a completion. Raises what a reward raises under `--reward_on_error raise`."""
        samples = [sample_of(self._encoder, prompt.columns, completion) for completion in completions]
        now = [at for at in range(len(self._rewards)) if at not in self.late]
        columns = _columns(samples, self._trainer_state)
        values = await asyncio.gather(*(self._timed(at, samples, columns) for at in now))
        by_column = {at: column for at, column in zip(now, values, strict=True) if column is not None}
        scores = [self._one_score(row, by_column) for row in range(len(completions))]
        if self.spread is not None and not self._has_more:
            self.spread.check(scores)
        return scores

    async def _timed(self, at: int, samples: list[Any], columns: dict[str, Any]) -> list[float | None] | None:
        begin_s = time.monotonic()
        values = await self._score(at, samples, columns)
        self.on_scored(self._rewards[at].name, begin_s, time.monotonic(), len(samples))
        return values

    async def _score(self, at: int, samples: list[Any], columns: dict[str, Any]) -> list[float | None] | None:
        """None where the reward is late from now on."""
        reward = self._rewards[at]
        answers = [sample.messages[-1]["content"] for sample in samples]
        if isinstance(reward, AsyncCheckedReward):
            return await reward(answers, **columns)
        loop = asyncio.get_running_loop()
        values, needs_main_thread = await loop.run_in_executor(self._pool, self._call, at, answers, columns)
        if needs_main_thread and at not in self.late:
            self.late.add(at)
            logger.warning(
                f"the reward {reward.name} sets an alarm signal, which only works in the main thread: from now on it"
                " scores when a batch is picked up, not beside the training"
            )
        return None if at in self.late else values

    def _call(self, at: int, answers: list[Any], columns: dict[str, Any]) -> tuple[Any, bool]:
        with self._one_at_a_time[
            at
        ]:  # its counters and the user's own state are not made for several threads
            return self._watch.call(self._rewards[at], answers, **columns)

    def _one_score(self, row: int, by_column: dict[int, list[float | None]]) -> Score:
        parts = tuple(
            RewardPart(self._rewards[at].name, column[row], self._rewards[at].spec.version or "")
            for at, column in sorted(by_column.items())
        )
        is_scored = self._has_more or any(part.value is not None for part in parts)
        return Score(0.0 if is_scored else None, parts)

    def close(self) -> None:
        """No more scoring; a reward that still runs is left to end by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def sample_of(encoder: Any, row: Any, completion: Completion) -> Any:
    """The row with the completion as its answer, as rewards see it."""
    return encoder.answer(
        encoder.sample(dict(row)),
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
