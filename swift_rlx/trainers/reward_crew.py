"""Where the rewards of a run score, and what ms-swift calls in their place.

    async function                                the rewards' event loop
    sync function                                 a process that can be killed
    sync function that is `thread_safe`           threads of this process
    one that no other process can find            one thread of this process; the main thread without the pipeline
    reward model                                  a process of its own, or one thread; see `beside_models`

A call with `scope="batch"` has all rows of a batch, and ten times the time of another one.

What sets an alarm needs a main thread: that of its process or, where it has none, this one's, as is seen when it
scores first.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from swift_rlx.cluster.reward_pool import ProcessExecution, RewardPool
from swift_rlx.rewards import (
    AlarmWatch,
    AsyncCheckedReward,
    CheckedReward,
    OnError,
    Reward,
    RewardCounters,
    RewardSpec,
    checked_reward,
)
from swift_rlx.rewards.execution import Execution, LoopExecution, NeedsMainThread, ThreadExecution
from swift_rlx.rewards.reward_loop import RewardLoop
from swift_rlx.rewards.runner import RewardRunner, RunnerSettings, Scored

BATCH_LIMITS = 10.0
"""A call with a whole batch may take so many times the limit of a row."""
CLOSE_S = 10.0
"""How long processes may take to be killed at the end."""


class RunReward:
    """A reward of the run. `runner`: scores beside the training; None where only the main thread can."""

    def __init__(self, crew: "RewardCrew", reward: Reward, runner: RewardRunner | None) -> None:
        self.reward = reward
        self.runner = runner
        self.counters = RewardCounters()
        self._crew = crew
        self._here: CheckedReward | AsyncCheckedReward | None = None

    @property
    def spec(self) -> RewardSpec:
        return self.reward.spec

    @property
    def name(self) -> str:
        return self.reward.spec.name

    @property
    def version(self) -> str:
        """What it scores with now."""
        return self.reward.version

    def take_counters(self) -> RewardCounters:
        """The counters of what ms-swift called so far; they start again at zero."""
        taken, self.counters = self.counters, RewardCounters()
        if self._here is not None:
            taken.add(self._here.take_counters())
        return taken

    @property
    def loop(self) -> RewardLoop:
        """Where it scores beside the training."""
        return self._crew.loop

    async def score_beside(self, completions: Sequence[Any], columns: dict[str, Any]) -> Scored:
        """In the rewards' loop. Raises `NeedsMainThread`, and what the policy says."""
        if self.runner is None:
            raise NeedsMainThread
        return await self._crew.loop.run(self.runner.score(completions, columns))

    @property
    def here(self) -> CheckedReward | AsyncCheckedReward:
        """Called in the thread that calls it, without limits; constructed when it is first asked for."""
        if self._here is None:
            self._here = checked_reward(self.reward, self._crew.on_error)
        return self._here


class BesideReward(RunReward):
    """ms-swift awaits several of them together."""

    async def __call__(self, completions: Sequence[Any], /, **columns: Any) -> list[float | None]:
        if self.runner is not None:
            try:
                scored = await self.score_beside(completions, columns)
            except NeedsMainThread:
                self.runner = None
            else:
                self.counters.add(scored.counters)
                return list(scored.values)
        if isinstance(self.here, AsyncCheckedReward):
            return await self.here(completions, **columns)
        return self.here(completions, **columns)


class HereReward(RunReward):
    """ms-swift calls it in the main thread."""

    def __call__(self, completions: Sequence[Any], /, **columns: Any) -> list[float | None]:
        values: list[float | None] = self.here(completions, **columns)  # type: ignore[assignment]
        return values


class RewardCrew:
    """The rewards of a run with their loop and their processes, which start when they are first needed.

    `limit_s`: seconds for a row. `workers`: processes at most. `devices`: accelerators that they see; None: all.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        on_error: OnError,
        limit_s: float = 60.0,
        workers: int | None = None,
        devices: str | None = None,
    ) -> None:
        self.on_error = on_error
        self.loop = RewardLoop()
        self.models: list[RunReward] = []
        """Reward models that score beside the training, until the crew is closed."""
        environment = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
        size = workers or max(default_workers(), len(rewards))
        self.pool = RewardPool(size, environment, rewards=len(rewards))
        self._watch = AlarmWatch()
        self._open = ExitStack()
        self._is_watching = False
        self._limit_s = limit_s
        self._own_pools: list[RewardPool] = []
        self.rewards = [self._run_reward(reward, self.pool) for reward in rewards]

    def add_model(self, reward: Reward, environment: Mapping[str, str], start_limit_s: float) -> RunReward:
        """Have a reward model score in a process of its own with these variables or, without an origin, in a thread."""
        self._own_pools.append(RewardPool(1, environment, start_limit_s))
        self.models.append(self._run_reward(reward, self._own_pools[-1]))
        return self.models[-1]

    def watch(self) -> None:
        """From now on, rewards in threads that set an alarm are noticed."""
        if not self._is_watching:
            self._open.enter_context(self._watch.installed())
            self._is_watching = True

    def submit_warm_up(self) -> Any:
        """Start processes and load there what scores in processes; returns a future, which raises PluginError."""
        self.watch()
        return self.loop.submit(self._warm_up())

    def close(self) -> None:
        """End what rewards are at, and the processes. What is called later starts these again."""
        self.loop.clear(_close([self.pool, *self._own_pools]), CLOSE_S)
        self._open.close()
        self._is_watching = False
        self.models, self._own_pools = [], []

    async def _warm_up(self) -> None:
        """Functions share one process, which loads one after the other."""
        models = [one.warm_up() for one in _in_processes(self.models)]
        await asyncio.gather(self._warm_up_functions(), *models)

    async def _warm_up_functions(self) -> None:
        for execution in _in_processes(self.rewards):
            await execution.warm_up()

    def _run_reward(self, reward: Reward, pool: RewardPool) -> RunReward:
        in_own_thread = reward.origin is None and not (reward.spec.is_async or reward.spec.thread_safe)
        made: RunReward = (HereReward if in_own_thread else BesideReward)(self, reward, None)
        limit_s = self._limit_s * (BATCH_LIMITS if reward.spec.scope == "batch" else 1.0)
        settings = RunnerSettings(limit_s, self.on_error)
        made.runner = RewardRunner(reward, self._execution(reward, made, pool), settings)
        return made

    def _execution(self, reward: Reward, made: RunReward, pool: RewardPool) -> Execution:
        def in_threads(lanes: int = 1) -> Execution:
            assert isinstance(made.here, CheckedReward)
            return ThreadExecution(made.here, self._watch, lanes)

        if reward.spec.is_async:
            assert isinstance(made.here, AsyncCheckedReward)
            return LoopExecution(made.here, self._watch)
        if reward.spec.thread_safe:
            return in_threads(os.cpu_count() or 1)
        if reward.origin is None:
            return in_threads()
        return ProcessExecution(reward.spec.name, reward.origin, pool, in_threads)


async def _close(pools: Sequence[RewardPool]) -> None:
    await asyncio.gather(*(pool.close() for pool in pools))


def _in_processes(rewards: Sequence[RunReward]) -> list[ProcessExecution]:
    executions = [one.runner.execution for one in rewards if one.runner is not None]
    return [one for one in executions if isinstance(one, ProcessExecution)]


def default_workers() -> int:
    """A quarter of the cores, from 2 to 8: with one, all rows would wait for one that hangs."""
    return max(2, min(8, len(os.sched_getaffinity(0)) // 4))
