"""Sums up what happens between two lines of the log, and over a run. Pure: time comes with what it is told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from swift_rlx.monitors.long_answers import LongAnswers
from swift_rlx.monitors.records import Counters, Phase, RunTotals
from swift_rlx.types import Completion, DropReason, Fate, TrainBatch

WARM_UP_STEPS = 2
MAX_SAMPLES = 65_536
"""Percentiles are of at most that many of the last answers here."""
WASTED = (Fate.OVER_AGE, Fate.CUT, Fate.FAILED)


@dataclass(slots=True)
class _Window:
    """Sums since the last line."""

    start_s: float
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))
    publishes: int = 0
    batches: int = 0
    tokens: int = 0
    staleness_tokens: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    applies: int = 0
    apply_s: float = 0.0
    scored: int = 0
    score_s: float = 0.0
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))


class RolloutMeter:
    """Accumulates. One thread at a time."""

    def __init__(self, start_s: float) -> None:
        self._window = _Window(start_s)
        self._long = LongAnswers()
        self._counters: Counters | None = None
        self._counted: Counters | None = None
        self._steps = 0
        self._step: int | None = None
        self._origin_s = start_s
        """End of the warm-up, as far as it is over."""
        self._train_end_s = start_s
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._since_train = dict.fromkeys(Phase, 0.0)
        self._answer_s = 0.0
        self._groups = 0
        self._generate_s = self._score_s = 0.0
        self._slots_seen = self._slots_sum = 0

    def completion(self, completion: Completion) -> None:
        """An answer ended, whole or cut."""
        window, latency_s = self._window, completion.finish_s - completion.submit_s
        window.tokens += completion.num_sampled
        window.latency_s.append(latency_s)
        if completion.num_tokens:
            window.first_token_s.append(completion.first_token_s - completion.submit_s)
        self._long.ended(latency_s)
        self._answer_s += max(completion.finish_s - max(completion.submit_s, self._origin_s), 0.0)

    def phase(self, phase: Phase, start_s: float, finish_s: float, step: int) -> None:
        """The trainer's main thread did this. `step`: the optimizer step that it belongs to."""
        window = self._window
        window.publishes += phase is Phase.PUBLISH
        begin_s = max(window.start_s, self._origin_s) if phase is Phase.TRAIN else window.start_s
        window.seconds[phase] += max(finish_s - max(start_s, begin_s), 0.0)
        self._since_train[phase] += max(finish_s - max(start_s, self._origin_s), 0.0)
        if phase is Phase.TRAIN:
            self._trained(finish_s, step)

    def _trained(self, finish_s: float, step: int) -> None:
        self._steps += step != self._step
        self._step = step
        self._train_end_s = finish_s
        for phase, seconds in self._since_train.items():
            self._seconds[phase] += seconds
        self._since_train = dict.fromkeys(Phase, 0.0)
        if self._steps <= WARM_UP_STEPS:
            self._origin_s = finish_s
            self._seconds = dict.fromkeys(Phase, 0.0)
            self._window.seconds[Phase.TRAIN] = self._answer_s = 0.0

    def applied(self, start_s: float, finish_s: float) -> None:
        """A worker loaded published weights."""
        self._window.applies += 1
        self._window.apply_s += finish_s - start_s

    def batch(self, batch: TrainBatch) -> None:
        """A generation batch was picked up."""
        window = self._window
        window.batches += 1
        for group in batch.groups:
            members = group.group.members
            for member, mask in zip(members, group.loss_masks, strict=True):
                completion, trained = member.completion, int(mask.sum())
                if trained:
                    ages = batch.step - completion.policy_steps[mask]
                    window.staleness_tokens += trained
                    window.staleness_sum += int(ages.sum())
                    window.staleness_max = max(window.staleness_max, int(ages.max()))
                    latency_s = completion.finish_s - completion.submit_s
                    self._long.trained(latency_s, completion.num_sampled, trained)
            if members:
                submit_s = min(member.completion.submit_s for member in members)
                last_s = max(member.completion.finish_s for member in members)
                score_s = max(member.scored_s for member in members) - last_s
                window.scored += 1
                window.score_s += score_s
                self._groups += 1
                self._generate_s += last_s - submit_s
                self._score_s += score_s

    def count(self, counters: Counters) -> None:
        """The scheduler's counters now."""
        self._counters = counters
        if self._steps > WARM_UP_STEPS:
            self._slots_seen += 1
            self._slots_sum += sum(counters.max_inflight.values())

    def go_on_from(self, counters: Counters) -> None:
        """Differences count from here: what earlier starts of the run counted is not of this one."""
        self._counters = self._counted = counters

    def values(self, now_s: float) -> dict[str, float]:
        """The metrics of `names.METRICS` since the last line, as far as there is something to say."""
        window, train_s = self._window, self._window.seconds[Phase.TRAIN]
        values = {"rollout/tokens_per_s": window.tokens / max(now_s - window.start_s, 1e-9)}
        measured_s = now_s - max(window.start_s, self._origin_s)
        if self._steps > WARM_UP_STEPS and train_s > 0 and measured_s > 0:
            values["rollout/trainer_busy"] = min(train_s / measured_s, 1.0)
        if window.batches:
            values["rollout/wait_s"] = window.seconds[Phase.WAIT] / window.batches
        if window.publishes:
            values["rollout/publish_s"] = window.seconds[Phase.PUBLISH] / window.publishes
        if window.staleness_tokens:
            values["rollout/staleness_mean"] = window.staleness_sum / window.staleness_tokens
            values["rollout/staleness_max"] = float(window.staleness_max)
        if window.applies:
            values["rollout/apply_s"] = window.apply_s / window.applies
        if window.scored:
            values["rollout/score_s"] = window.score_s / window.scored
        for name, samples in (("latency", window.latency_s), ("first_token", window.first_token_s)):
            if samples:
                p50, p95 = np.percentile(np.fromiter(samples, np.float64, len(samples)), [50, 95]).tolist()
                values |= {f"rollout/{name}_p50_s": p50, f"rollout/{name}_p95_s": p95}
        return values | self._long.values() | self._counter_values()

    def _counter_values(self) -> dict[str, float]:
        now, before = self._counters, self._counted
        if now is None:
            return {}
        total = sum(now.tokens.values())
        repeated = now.repeated_tokens - (before.repeated_tokens if before else 0)
        wasted = sum(now.tokens[fate] - (before.tokens[fate] if before else 0) for fate in WASTED)
        dropped = sum(now.dropped.values()) - (sum(before.dropped.values()) if before else 0)
        shares = {
            f"tokens/{fate.name.lower()}_share": tokens / total if total else 0.0
            for fate, tokens in now.tokens.items()
        }
        return {
            "rollout/inflight": float(now.inflight),
            "rollout/ready": float(now.ready),
            "rollout/retries": float(now.retries - (before.retries if before else 0)),
            "rollout/failovers": float(now.failovers - (before.failovers if before else 0)),
            "rollout/groups_dropped": float(dropped),
            "rollout/tokens_wasted": float(wasted),
            "rollout/tokens_repeated": float(repeated),
            **{
                f"groups/dropped_{reason.name.lower()}": float(
                    now.dropped.get(reason, 0) - (before.dropped.get(reason, 0) if before else 0)
                )
                for reason in DropReason
            },
            **(shares if total else {}),
        }

    def begin_window(self, now_s: float) -> None:
        """A line was written; the next one counts from here."""
        self._window = _Window(now_s)
        self._long.begin_window()
        self._counted = self._counters

    def totals(self) -> RunTotals:
        """The run so far."""
        counters = self._counters
        wall_s = self._train_end_s - self._origin_s
        return RunTotals(
            steps=self._steps,
            wall_s=wall_s,
            seconds=dict(self._seconds),
            mean_inflight=self._answer_s / wall_s if wall_s > 0 else 0.0,
            slots=self._slots(),
            generate_s=self._generate_s / max(self._groups, 1),
            score_s=self._score_s / max(self._groups, 1),
            tokens=dict(counters.tokens) if counters else {},
            failovers=counters.failovers if counters else 0,
            away_s=counters.away_s if counters else 0.0,
            workers=tuple(counters.max_inflight) if counters else (),
        )

    def _slots(self) -> float:
        """Mean over what was counted after the warm-up, else what was counted last: an adapted limit swings."""
        if self._slots_seen:
            return self._slots_sum / self._slots_seen
        return float(sum(self._counters.max_inflight.values())) if self._counters else 0.0
