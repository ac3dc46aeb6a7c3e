"""Our scheduler, as it is, with a fake backend and a trainer that only takes time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from swift_rlx.clock import LoopClock
from swift_rlx.scheduler import (
    GroupEnd,
    GroupOutcome,
    IterableSource,
    RolloutScheduler,
    Statistics,
    WaitFiller,
)
from swift_rlx.simulation.outcome import Outcome, Tally
from swift_rlx.simulation.setting import Setting
from swift_rlx.simulation.untrained_store import UntrainedStore
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Completion, Fate, Prompt, Score, TrainBatch


def simulate(setting: Setting) -> Outcome:
    """Train `setting.steps` steps in virtual time."""
    return simulate_with_statistics(setting)[0]


def simulate_with_statistics(setting: Setting) -> tuple[Outcome, Statistics]:
    """The outcome, and the scheduler's own counters at the end."""
    return run_virtual(_run(setting))


async def _run(setting: Setting) -> tuple[Outcome, Statistics]:
    clock, tally = LoopClock(), Tally(setting)
    script = FakeScript(setting.latency, setting.tokens_per_s, publish_s=setting.publish_s)
    backends = [
        FakeBackend(f"worker-{number}", script, mode=setting.weight_update)
        for number in range(setting.workers)
    ]
    prompts = IterableSource(_prompt(setting, index) for index in itertools.count())

    async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
        if setting.score_s:
            await clock.sleep(setting.score_s)
        return [Score(1.0)] * len(completions)

    def on_end(end: GroupEnd) -> None:
        if end.outcome is GroupOutcome.OVER_AGE:  # thrown away; it is made again
            tokens = sum(member.completion.num_sampled for member in end.group.members)
            tally.lost(end.group.prompt.index, tokens)

    config = setting.rollout_config()
    filler, store = WaitFiller(clock), UntrainedStore(setting.fill_groups)
    scheduler = RolloutScheduler(config, backends, prompts, score, on_end=on_end)
    async with scheduler:
        for _ in range(setting.steps):
            for _ in range(setting.batches_per_step):
                while True:
                    filler.has_stored = setting.fill_the_wait and store.has_batch
                    batch = await scheduler.next_batch(filler)
                    assert batch is not None  # the source is endless
                    if batch.groups:
                        break
                    tally.filled(store.take_batch())
                    await clock.sleep(setting.train_s * setting.fill_groups / setting.batch_groups)
                _count(tally, batch, store if setting.fill_the_wait else None)
                await clock.sleep(setting.train_s / setting.batches_per_step)
            tally.step(clock.now())
            scheduler.publish(None)
        ledger = scheduler.ledger
        tally.lost(None, ledger.tokens(Fate.CUT) + ledger.tokens(Fate.FAILED))
    return tally.outcome(), scheduler.statistics()


def _prompt(setting: Setting, index: int) -> Prompt:
    expected = int(setting.group_latency_s(index) * setting.tokens_per_s) if setting.reserved_share else None
    return Prompt(index, np.zeros(1, dtype=np.int32), expected_tokens=expected)


def _count(tally: Tally, batch: TrainBatch, store: UntrainedStore | None) -> None:
    for train_group in batch.groups:
        by_age: Counter[int] = Counter()
        over_age = 0
        for member, mask in zip(train_group.group.members, train_group.loss_masks, strict=True):
            ages = batch.step - member.completion.policy_steps[mask]
            by_age.update({age: count for age, count in enumerate(np.bincount(ages).tolist()) if count})
            over_age += len(mask) - int(mask.sum())
        index = train_group.group.prompt.index
        tally.trained(index, dict(by_age), over_age)
        if store is not None:
            store.add(index, over_age)
            tally.stored(over_age)
