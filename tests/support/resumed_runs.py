"""A trainer that is killed at random moments and resumed from its last checkpoint, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

from faulty_workers import WatchedBackend, faulty_script
from scheduler_runs import Watch, prompts, random_plan, scorer, train_all

from swift_rlx.scheduler import IterableSource, RolloutScheduler, RolloutState
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import PolicyVersion


def plan_of(seed):
    """A random run without permanent faults, whose undisturbed length is known to no one."""
    return replace(
        random_plan(seed),
        permanent=0.0,
        illness=None,
        blackout=None,
        deaths=(),
        poison=None,
        stalls=0.0,
        failed_publishes=0.0,
    )


@dataclass
class Checkpoint:
    """What the trainer keeps: its step, what it has trained, and the scheduler's state."""

    step: int = 0
    trained: list = field(default_factory=list)
    batches: int = 0
    state: RolloutState | None = None


@dataclass
class Life:
    """A run through all of its starts. `keep(state)`: how a snapshot goes to disk and comes back."""

    plan: object
    keep: object = lambda state: state
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    starts: int = 0
    stats: object = None
    seconds: float = 0.0
    """How long the last start took."""
    made_tokens: int = 0
    """By the workers of all starts."""
    resumed_ready: int = 0
    resumed_unfinished: int = 0

    def saves(self, chance) -> bool:
        """Whether a step is followed by a checkpoint."""
        return chance.random() < 0.5

    def watch(self):
        """The checker of one start."""
        return Watch(self.plan)

    def state(self):
        """With what a start begins."""
        return self.checkpoint.state

    def begun(self, state, watch) -> None:
        """A start goes on from this."""

    def options(self, watch) -> dict:
        """Further arguments of the scheduler."""
        return {}

    def live(self, kill_after: list[float]) -> list:
        """Train to the end, killed after these virtual seconds of each start; returns what was trained in order."""
        for seconds in [*kill_after, None]:
            run_virtual(self._start(seconds))
            self.starts += 1
            if self.stats is not None:
                break
        return self.checkpoint.trained

    async def _start(self, kill_after: float | None) -> None:
        task = asyncio.ensure_future(self._train())
        await asyncio.wait([task], timeout=kill_after)
        if task.done():
            task.result()
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _train(self) -> None:
        plan, begin, state = self.plan, self.checkpoint, self.state()
        version = PolicyVersion(self.starts, begin.step)
        watch, every = self.watch(), prompts(plan.num_prompts)
        loop = asyncio.get_running_loop()
        backends = [
            WatchedBackend(watch, name, faulty_script(plan, name, loop.time), mode=plan.mode, version=version)
            for name in (f"worker-{number}" for number in range(plan.workers))
        ]
        admitted = 0 if state is None else state.admitted
        if state is not None:
            ready = sum(one.ready is not None for one in state.open)
            self.resumed_ready += ready
            self.resumed_unfinished += len(state.open) - ready
            self.begun(state, watch)
        config = plan.config
        if config.max_batches is not None:
            config = replace(config, max_batches=config.max_batches - begin.batches)
        watch.trained = list(begin.trained)
        chance = random.Random(f"{plan.seed}/{self.starts}")

        def save(step, before, after):
            if self.saves(chance):
                batches = begin.batches + len(watch.picks)
                self.checkpoint = Checkpoint(
                    step, list(watch.trained), batches, self.keep(chance.choice([before, after]))
                )

        scheduler = RolloutScheduler(
            config,
            backends,
            IterableSource(every[admitted:]),
            scorer(plan),
            version=version,
            state=state,
            prompt_of=lambda index, epoch: every[index],
            **self.options(watch),
        )
        try:
            async with scheduler:
                await train_all(plan, scheduler, watch, begin.step, save)
                stats = scheduler.statistics()
        finally:
            self.made_tokens += sum(backend.generated_tokens for backend in backends)
        # A kill while the scheduler closes is one before the end, too.
        self.stats, self.seconds = stats, loop.time()
        self.checkpoint.trained = watch.trained
