"""Random simulated runs of the real scheduler, watched from outside by a checker that shares no code with it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from faulty_workers import WatchedBackend, faulty_script

from swift_rlx.backends import WeightUpdate
from swift_rlx.clock import LoopClock
from swift_rlx.scheduler import (
    GroupOutcome,
    GroupRejected,
    IterableSource,
    RolloutConfig,
    RolloutScheduler,
    StaleTokens,
    Statistics,
    TrainOrder,
    WaitFiller,
)
from swift_rlx.testing.fake_backend import LogNormalLatency
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import DropReason, Fate, Prompt, SamplingParams, Score


def prompts(count: int, start: int = 0) -> list[Prompt]:
    return [Prompt(index, np.zeros(3, dtype=np.int32)) for index in range(start, start + count)]


async def score_one(prompt, completions):
    return [Score(1.0)] * len(completions)


LONGEST_S = 100_000.0
"""Of a run in virtual time; one that takes longer waits for ever."""


@dataclass
class Plan:
    """One random run. Faults: `transient` share of requests that fail at first; `permanent` members that never work."""

    config: RolloutConfig
    batches: int
    workers: int
    mode: WeightUpdate
    latency: LogNormalLatency
    train_s: float
    score_s: float
    publish_s: float
    transient: float = 0.0
    permanent: float = 0.0
    illness: tuple[float, float] | None = None
    """When worker-0 answers nothing."""
    deaths: tuple[tuple[float, int], ...] = ()
    """When which worker dies."""
    stalls: float = 0.0
    """Share of requests that make no further token in their first attempt, until their time is up."""
    poison: int | None = None
    """Prompt whose requests kill every worker that they are on."""
    tell_s: float = 0.0
    """How often workers tell of tokens; 0: never."""
    failed_publishes: float = 0.0
    """Share of publishes that a worker fails at, half of them by hanging."""
    blackout: tuple[float, float] | None = None
    """When no worker answers anything."""
    lengths_known: bool = False
    slow_scores: bool = False
    """Whether every fourth prompt is scored for longer than the bound may allow."""
    extra_prompts: int = 0
    publishes_every_step: bool = True
    """Else once a generation batch."""
    rejects: bool = False
    """Whether the scorer rejects every fifth prompt."""
    fills: bool = False
    """Whether the trainer has a store that fills its waits."""
    environment: bool = False
    """Whether answers hold tokens that the policy did not make."""
    seed: int = 0

    @property
    def num_prompts(self) -> int:
        return self.batches * self.config.batch_groups + self.extra_prompts

    def is_ill(self, name: str, now: float) -> bool:
        times = (self.blackout, self.illness if name == "worker-0" else None)
        return any(begin <= now < end for begin, end in filter(None, times))

    def prompts(self) -> list[Prompt]:
        made = prompts(self.num_prompts)
        if not self.lengths_known:
            return made
        seconds = (self.latency.of(0, one.index) for one in made)
        return [replace(one, expected_tokens=int(10 * each)) for one, each in zip(made, seconds, strict=True)]


def random_plan(seed: int) -> Plan:
    chance, more = random.Random(seed), random.Random(f"more/{seed}")
    pick = chance.choice
    group_size, batches, workers = pick([1, 2, 3, 4]), chance.randint(3, 7), pick([1, 2, 3])
    mode = pick(list(WeightUpdate))
    limited = chance.random() < 0.5
    steps_per_batch, batches_per_step = pick([(1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)])
    config = RolloutConfig(
        batch_groups=chance.randint(1, 5),
        group_size=group_size,
        min_members=chance.randint(1, group_size),
        max_staleness=chance.randint(0, 4),
        steps_per_batch=steps_per_batch,
        batches_per_step=batches_per_step,
        max_batches=batches if limited else None,
        max_inflight=(chance.randint(1, 12), None)[more.random() < 0.1],
        reserved_share=pick([0.0, 0.3]),
        shape_capacity=chance.random() < 0.7,
        weight_update=mode,
        train_order=pick([TrainOrder.COMPLETION, TrainOrder.COMPLETION, TrainOrder.ADMISSION]),
        stale_tokens=pick([StaleTokens.MASK, StaleTokens.MASK, StaleTokens.DROP]),
        request_timeout_s=400.0,
        first_token_limit_s=more.choice([20.0, 40.0]),
        token_gap_limit_s=more.choice([10.0, 40.0]),
        outage_limit_s=1e6,
        publish_limit_s=20.0,
        warm_up_limit_s=1e6,
        retries=8,
        score_concurrency=pick([1, 4, 64]),
        seed=seed,
        sampling=SamplingParams(max_tokens=50),
    )
    plan = Plan(
        config=config,
        batches=batches,
        workers=workers,
        mode=mode,
        latency=LogNormalLatency(pick([0.1, 1.0, 3.0]), pick([0.0, 0.5, 1.0, 1.5]), seed),
        train_s=pick([0.2, 1.0, 3.0]),
        score_s=pick([0.0, 0.1, 2.0, 5.0]),
        publish_s=pick([0.0, 0.0, 0.5, 1.5]),
        transient=pick([0.0, 0.0, 0.1, 0.4]),
        permanent=pick([0.0, 0.0, 0.0, 0.2]),
        illness=(chance.uniform(0, 4), chance.uniform(4, 12))
        if workers > 1 and chance.random() < 0.3
        else None,
        deaths=tuple(
            (more.uniform(0, 20), more.randrange(workers)) for _ in range(more.choice([0, 0, 0, 1, 4]))
        ),
        stalls=more.choice([0.0, 0.0, 0.0, 0.1]),
        poison=more.randint(0, 9) if more.random() < 0.1 else None,
        tell_s=more.choice([0.0, 0.3, 0.3, 1.0]),
        failed_publishes=more.choice([0.0, 0.0, 0.0, 0.0, 0.2]),
        extra_prompts=chance.randint(0, 9) if limited else 0,
        publishes_every_step=chance.random() < 0.5,
        rejects=chance.random() < 0.2,
        environment=chance.random() < 0.3,
        seed=seed,
    )
    return _with_more(plan, random.Random(f"{seed}/more"))


def _with_more(plan: Plan, chance: random.Random) -> Plan:
    begin, lengths_known = chance.uniform(0, 10), chance.random() < 0.3
    return replace(
        plan,
        config=replace(plan.config, long_tokens=20) if lengths_known else plan.config,
        lengths_known=lengths_known,
        blackout=(begin, begin + chance.uniform(1, 30)) if chance.random() < 0.2 else None,
        slow_scores=chance.random() < 0.5,
    )


@dataclass
class Watch:
    """What the checker saw."""

    plan: Plan
    taken: list[tuple[int, int]] = field(default_factory=list)
    trained: list[tuple[int, int]] = field(default_factory=list)
    trained_tokens: int = 0
    ended: Counter = field(default_factory=Counter)
    untrained_ends: int = 0
    unanswered: set = field(default_factory=set)
    """Prompts that were dropped for want of answers."""
    deaths: int = 0
    continued: int = 0
    """Answers that a second worker went on with."""
    flying: Counter = field(default_factory=Counter)
    ages: Counter = field(default_factory=Counter)
    rounds: Counter = field(default_factory=Counter)
    step: int = 0
    live: int = 0
    picks: list[tuple[int, int]] = field(default_factory=list)
    """Groups that were picked up, by the step that makes their weights live."""
    fills: int = 0
    stats: Statistics | None = None

    def source(self):
        config = self.plan.config
        in_bound = config.max_staleness // config.steps_per_batch + 1
        places = in_bound * config.batches_per_step * config.batch_groups
        for prompt in self.plan.prompts():
            # The source is read one prompt ahead, so this one will be admitted at the next call or never.
            yield prompt
            self.taken.append(prompt.key)
            open_groups = len(self.taken) - self.live - self.untrained_ends
            assert open_groups <= places, f"{open_groups} groups are open in {places} places"

    def on_end(self, end):
        if end.outcome is GroupOutcome.OVER_AGE:
            return
        self.ended[end.group.prompt.key] += 1
        if end.outcome is not GroupOutcome.TRAINED:
            self.untrained_ends += 1
        if end.drop_reason is DropReason.TOO_FEW_ANSWERS:
            self.unanswered.add(end.group.prompt.index)

    def check_fill(self, scheduler, batch):
        """A stored batch trains, and nothing else happens: no step, no age, no place."""
        self.fills += 1
        assert batch.step == self.step == scheduler.version.step
        assert scheduler.statistics().trained == len(self.trained)

    def check_batch(self, batch):
        bound = self.plan.config.max_staleness
        assert batch.step == self.step
        self.picks.append((self.step + self.plan.config.steps_per_batch, len(batch.groups)))
        for one in batch.groups:
            self.trained.append(one.group.prompt.key)
            self.rounds[one.group.rounds] += 1
            members = [member.member for member in one.group.members]
            assert len(set(members)) == len(members) >= self.plan.config.min_members
            in_mask = 0
            for member, mask in zip(one.group.members, one.loss_masks, strict=True):
                sampled = member.completion.sampled
                assert sampled is None or not (mask & ~sampled).any(), "a token of the environment trains"
                made = member.completion.sampled_steps
                assert (np.diff(made) >= 0).all(), "an answer went on under older weights"
                assert self.plan.mode is WeightUpdate.KEEP or made[0] == made[-1], "an answer of two versions"
                steps = member.completion.policy_steps[mask]
                assert not len(steps) or self.step - steps.min() <= bound, "a token over the bound trains"
                in_mask += int(mask.sum())
                self.ages.update((self.step - steps).tolist())
                assert member.completion.policy_steps.max() <= self.step
            assert in_mask, "a group trains without a token"
            self.trained_tokens += in_mask


def run_and_check(plan: Plan) -> Watch:
    """Run the plan to its end. Raises `AssertionError` or the scheduler's own error for a broken law."""
    watch = Watch(plan)
    run_virtual(_run(plan, watch))
    return watch


async def _run(plan: Plan, watch: Watch) -> None:
    loop, config = asyncio.get_running_loop(), plan.config
    backends = [
        WatchedBackend(
            watch, f"worker-{number}", faulty_script(plan, f"worker-{number}", loop.time), mode=plan.mode
        )
        for number in range(plan.workers)
    ]

    scheduler = RolloutScheduler(
        config, backends, IterableSource(watch.source()), scorer(plan), on_end=watch.on_end
    )
    watch_live(scheduler, watch)
    for when, number in plan.deaths:
        loop.call_later(when, backends[number].die)
    async with scheduler:
        training = asyncio.ensure_future(train_all(plan, scheduler, watch))
        await asyncio.wait([training], timeout=LONGEST_S)
        assert training.done(), f"the run has not ended after {LONGEST_S:g} s"
        training.result()
        watch.stats = scheduler.statistics()
    _check_end(plan, watch, watch.stats, backends)


def scorer(plan):
    """Scores after a while; rejects every fifth prompt where the plan says so."""

    async def score(prompt, completions):
        is_slow = plan.slow_scores and prompt.index % 4 == 1
        await asyncio.sleep(plan.score_s + 10.0 * is_slow)
        scores = [Score(float(one.num_tokens)) for one in completions]
        if plan.rejects and prompt.index % 5 == 2:
            raise GroupRejected(DropReason.NO_SPREAD, scores)
        return scores

    return score


async def train_all(plan, scheduler, watch, begin=0, save=lambda step, before, after: None):
    """Train until the prompts have ended. `save` gets snapshots from before and after each step's weights."""
    config, step, published, is_over = plan.config, begin, begin, False
    filler = WaitFiller(LoopClock(), max_in_a_row=5) if plan.fills else None
    while not is_over:
        picked = 0
        for _ in range(config.batches_per_step if step % config.steps_per_batch == 0 else 0):
            watch.step = step
            while (batch := await _next(scheduler, filler)) is not None and not batch.groups:
                watch.check_fill(scheduler, batch)
                await asyncio.sleep(plan.train_s / 4)
            if batch is None:
                is_over = True
                break
            watch.check_batch(batch)
            picked += 1
        if is_over and not picked:
            return
        await asyncio.sleep(plan.train_s)
        step += 1
        before = scheduler.snapshot()
        if plan.publishes_every_step or step % config.steps_per_batch == 0:
            scheduler.publish(None, step - published)
            published = step
        save(step, before, scheduler.snapshot())


async def _next(scheduler, filler):
    if filler is not None:
        filler.has_stored = True
    return await scheduler.next_batch(filler)


def watch_live(scheduler, watch):
    """Let the checker count groups whose weights are live, from what the workers themselves have taken."""
    state = scheduler._state
    inner_live = state.capacity.live

    def live(step):
        for worker in state.router.workers:
            assert worker.state.value == "ejected" or worker.version.step >= step
        while watch.picks and watch.picks[0][0] <= step:
            watch.live += watch.picks.pop(0)[1]
        inner_live(step)

    state.capacity.live = live


def _check_end(plan, watch, stats, backends):
    config, dropped = plan.config, sum(stats.dropped.values())
    scored = [index for _, index in watch.ended if index not in watch.unanswered]
    rejected = sum(index % 5 == 2 for index in scored) if plan.rejects else 0
    assert stats.admitted == len(watch.ended) == len(watch.trained) + dropped
    assert set(watch.ended.values()) == {1}
    assert max(watch.rounds, default=1) <= 2, "a group was made more than twice"
    assert len(set(watch.trained)) == len(watch.trained) == stats.trained
    assert stats.inflight == stats.open == stats.ready == stats.waiting_requests == 0
    assert not +watch.flying
    if not plan.permanent:
        assert watch.unanswered <= {plan.poison}, "a request was given up for what others did"
        assert dropped - len(watch.unanswered) == rejected == stats.dropped.get(DropReason.NO_SPREAD, 0)
    full = plan.batches * config.batch_groups
    assert stats.trained == (min(full, plan.num_prompts - dropped) if config.max_batches else full - dropped)
    if config.train_order is TrainOrder.ADMISSION:
        assert watch.trained == sorted(watch.trained)
    assert sum(stats.tokens.values()) == stats.generated_tokens
    assert not stats.tokens[Fate.IN_FLIGHT], "tokens are in flight after the end"
    assert stats.generated_tokens == sum(backend.generated_tokens for backend in backends)
    assert watch.trained_tokens == stats.tokens[Fate.TRAINED]
    assert dict(watch.ages) == dict(stats.staleness)
    assert all(
        backend.max_seen_inflight <= (config.max_inflight or config.most_inflight(plan.workers))
        for backend in backends
    )
    assert all(backend.is_closed for backend in backends)
