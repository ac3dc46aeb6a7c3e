"""What limited a run and what to change, out of its totals. Pure functions.

The trainer's time is the yardstick: whatever kept it from training longest is the limit. Where it waited for
rollouts, the next question is what these waited for: a worker that was there at all, the trainer itself (staleness 0),
their scores, a slot on a worker, or the staleness bound.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from swift_rlx.monitors.meter import WARM_UP_STEPS
from swift_rlx.monitors.progress import short_number
from swift_rlx.monitors.records import Phase, RolloutPlan, RunTotals
from swift_rlx.types import Fate

BUSY = 0.9
"""A trainer that trains this share of the time is the limit itself."""
SLOTS_FULL = 0.8
"""Share of the slots in use from which on a lack of slots holds up the rollouts."""
NOTABLE_WASTE = 0.05
FEWEST_STEPS = WARM_UP_STEPS + 5
"""Of a run that is judged. The waits of fewer are those of the start: for the first answers, and for places that the
bound opens one step after the other."""
AWAY = 0.5
"""Share of the trainer's waiting from which on it is for workers that are out."""


class Limit(enum.Enum):
    """What can keep a run from being faster."""

    TRAINING = "training"
    TURNS = "taking turns"
    GENERATION = "generation"
    AWAY = "workers that were out"
    STALENESS = "the staleness bound"
    REWARDS = "rewards"
    PUBLISHING = "publishing weights"
    EVALUATION = "evaluation"
    CHECKPOINTS = "saving checkpoints"
    BETWEEN = "the trainer's work between its steps"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limited a run, how that shows, and what to do."""

    limit: Limit
    evidence: str
    advice: str


def judge(totals: RunTotals, plan: RolloutPlan) -> Verdict | None:
    """None for a run that is too short to say."""
    if totals.steps < FEWEST_STEPS or totals.wall_s <= 0:
        return None
    lost = {phase: totals.share(phase) for phase in Phase if phase is not Phase.TRAIN}
    rest = max(1.0 - totals.share(Phase.TRAIN) - sum(lost.values()), 0.0)
    largest = max(lost, key=lambda phase: lost[phase])
    if totals.share(Phase.TRAIN) >= BUSY:
        return _training(totals, plan)
    if rest > lost[largest]:
        return Verdict(
            Limit.BETWEEN,
            f"{_percent(rest)} of the time: data, padding, gathering, logging",
            "use longer steps (--gradient_accumulation_steps), or profile the trainer",
        )
    return {
        Phase.WAIT: _waiting,
        Phase.PUBLISH: _publishing,
        Phase.EVALUATE: _evaluating,
        Phase.SAVE: _saving,
    }[largest](totals, plan)


def _training(totals: RunTotals, plan: RolloutPlan) -> Verdict:
    needed = math.ceil(plan.workers * totals.mean_inflight / (SLOTS_FULL * max(totals.slots, 1)))
    spare = plan.workers - max(needed, 1)
    if spare > 0:
        advice = (
            f"the answers in flight fit on {_count(plan.workers - spare, 'worker')}:"
            f" give the devices of {_count(spare, 'worker')} to the trainer"
        )
    else:
        advice = "only a faster trainer makes it faster: more ranks, or larger micro-batches"
    return Verdict(Limit.TRAINING, _slots(totals), advice)


def _waiting(totals: RunTotals, plan: RolloutPlan) -> Verdict:
    waited = f"the trainer waited {_percent(totals.share(Phase.WAIT))} of the time"
    if totals.away_s > AWAY * totals.seconds[Phase.WAIT]:
        who = totals.workers[0] if len(totals.workers) == 1 else "every worker"
        advice = "see the log for the cause; a further worker would have gone on meanwhile"
        return Verdict(Limit.AWAY, f"{waited}; for {_duration(totals.away_s)} {who} was out", advice)
    if plan.max_staleness == 0:
        advice = "set --max_staleness 1 or more, so that generation and training overlap"
        return Verdict(Limit.TURNS, f"{waited} at staleness 0", advice)
    if totals.score_s > totals.generate_s:
        evidence = (
            f"{waited}; a group took {totals.generate_s:.1f} s to generate, {totals.score_s:.1f} s to score"
        )
        return Verdict(Limit.REWARDS, evidence, "make the slowest reward faster, asynchronous or smaller")
    evidence = f"{waited}, {_slots(totals)}"
    if totals.mean_inflight >= SLOTS_FULL * totals.slots:
        speed_up = 1.0 / max(1.0 - totals.share(Phase.WAIT), 1e-3)
        workers = max(math.ceil(plan.workers * speed_up), plan.workers + 1)
        flag = "--rollout_target_latency_s" if plan.max_inflight is None else "--rollout_max_inflight"
        advice = f"--rollout_workers {workers} would feed the trainer, or raise {flag}"
        return Verdict(Limit.GENERATION, evidence, advice)
    advice = f"raise --max_staleness ({plan.max_staleness})"
    if plan.weight_update == "drain":
        advice += ", or use a backend that can keep answers in flight while weights are published"
    return Verdict(Limit.STALENESS, evidence, advice)


def _publishing(totals: RunTotals, plan: RolloutPlan) -> Verdict:
    share = _percent(totals.share(Phase.PUBLISH))
    advice = (
        "publish less often (--steps_per_generation), or train LoRA, of which only the adapter is published"
    )
    return Verdict(Limit.PUBLISHING, f"{share} of the trainer's time", advice)


def _evaluating(totals: RunTotals, plan: RolloutPlan) -> Verdict:
    share = _percent(totals.share(Phase.EVALUATE))
    return Verdict(
        Limit.EVALUATION, f"{share} of the time", "evaluate less often (--eval_steps) or on fewer rows"
    )


def _saving(totals: RunTotals, plan: RolloutPlan) -> Verdict:
    share = _percent(totals.share(Phase.SAVE))
    return Verdict(Limit.CHECKPOINTS, f"{share} of the time", "save less often (--save_steps)")


def _second_advice(totals: RunTotals, plan: RolloutPlan, first: str) -> str | None:
    """What is worth saying besides the limit."""
    total = sum(totals.tokens.values())
    shares = {fate: tokens / total for fate, tokens in totals.tokens.items()} if total else {}
    if shares.get(Fate.OVER_AGE, 0.0) > NOTABLE_WASTE and "--max_staleness" not in first:
        share = _percent(shares[Fate.OVER_AGE])
        return f"{share} of the tokens were over age: raise --max_staleness ({plan.max_staleness})"
    if plan.weight_update == "abort" and shares.get(Fate.CUT, 0.0) > NOTABLE_WASTE:
        share = _percent(shares[Fate.CUT])
        return f"{share} of the tokens were cut when weights were published: use --weight_update drain"
    if shares.get(Fate.FAILED, 0.0) > NOTABLE_WASTE:
        return f"{_percent(shares[Fate.FAILED])} of the tokens were lost to failures: see the log"
    if totals.failovers:
        return f"workers were taken out {_times(totals.failovers)}: see the log"
    return None


def summary_line(totals: RunTotals, plan: RolloutPlan) -> str:
    """One line: how busy the trainer was, what limited the run, and at most two things to change."""
    steps = _count(totals.steps, "step")
    verdict = judge(totals, plan)
    if verdict is None:
        return f"rollout: {steps}, too few to say what limits the run, which takes {FEWEST_STEPS}"
    advice = [verdict.advice]
    if (second := _second_advice(totals, plan, verdict.advice)) is not None:
        advice.append(second)
    busy = _percent(totals.share(Phase.TRAIN))
    return (
        f"rollout: {steps}, {_duration(totals.wall_s)} after the first {WARM_UP_STEPS}, trainer {busy} busy, limited"
        f" by {verdict.limit.value} ({verdict.evidence}): {'; '.join(advice)}"
    )


def ledger_line(tokens: Mapping[Fate, int]) -> str:
    """What became of every generated token, in tenths of a percent that sum to 100.0."""
    total = sum(tokens.values())
    if not total:
        return "tokens: none were generated"
    exact = {fate: 1000 * tokens.get(fate, 0) / total for fate in Fate}
    tenths = {fate: math.floor(value) for fate, value in exact.items()}
    short = 1000 - sum(tenths.values())
    for fate in sorted(exact, key=lambda one: tenths[one] - exact[one])[:short]:
        tenths[fate] += 1  # those that rounding down took most from
    order = sorted(Fate, key=lambda fate: fate is Fate.IN_FLIGHT)
    shares = ", ".join(f"{fate.value} {tenths[fate] / 10:.1f} %" for fate in order)
    return f"tokens: {short_number(total)} generated: {shares}"


def _slots(totals: RunTotals) -> str:
    return f"{totals.mean_inflight:.0f} of {totals.slots:.0f} slots were in use"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
