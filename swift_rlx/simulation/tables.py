"""The comparison of admission rules: six cases of training time and tail, several seeds, one row a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from swift_rlx.backends import WeightUpdate
from swift_rlx.scheduler import TrainOrder
from swift_rlx.simulation.ours import simulate
from swift_rlx.simulation.outcome import Outcome, mean
from swift_rlx.simulation.peers import PEERS, simulate_peer
from swift_rlx.simulation.setting import Setting

CASES = tuple((train_s, sigma) for train_s in (20.0, 60.0) for sigma in (0.7, 1.0, 1.3))
BASE = Setting(generate_s=20.0, slots=96, batch_groups=32, max_staleness=2)
TOTALS = "totals (AReaL, SkyRL)"
OURS = "swift-rlx"

RULES: dict[str, Callable[[Setting], Outcome]] = {
    **{name: partial(simulate_peer, rule) for name, rule in PEERS.items()},
    OURS: simulate,
    "swift-rlx, 8 pick-ups a step": lambda setting: simulate(replace(setting, batches_per_step=8)),
    "swift-rlx, fill the wait": lambda setting: simulate(replace(setting, fill_the_wait=True)),
    "swift-rlx, 8 pick-ups, fill": lambda setting: simulate(
        replace(setting, batches_per_step=8, fill_the_wait=True)
    ),
    "swift-rlx, no shaping": lambda setting: simulate(replace(setting, shape_capacity=False)),
    "swift-rlx, pin": lambda setting: simulate(replace(setting, weight_update=WeightUpdate.PIN)),
    "swift-rlx, admission order": lambda setting: simulate(
        replace(setting, train_order=TrainOrder.ADMISSION)
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One rule in one case."""

    rule: str
    outcome: Outcome
    relative: float
    """Steps per hour over those of the row of totals."""


@dataclass(frozen=True, slots=True)
class Case:
    """All rules under one training time and tail."""

    train_s: float
    sigma: float
    rows: tuple[Row, ...]


def scheduling_cases(steps: int, seeds: int) -> Iterator[Case]:
    """Case by case, each the mean over `seeds` runs of `steps` steps."""
    for train_s, sigma in CASES:
        setting = replace(BASE, train_s=train_s, sigma=sigma, steps=steps)
        outcomes = {
            name: mean([run(replace(setting, seed=seed)) for seed in range(seeds)])
            for name, run in RULES.items()
        }
        totals = outcomes[TOTALS].steps_per_h
        rows = [Row(name, outcome, outcome.steps_per_h / totals) for name, outcome in outcomes.items()]
        yield Case(train_s, sigma, tuple(rows))


def missed(row: Row) -> list[str]:
    """What keeps a row from the goal: fast, strict, nothing lost, long prompts neither starved nor cut."""
    outcome = row.outcome
    goals = {
        "steps/h": row.relative >= 0.95,
        "bound": outcome.trained_over_bound == 0,
        "untrained tokens": outcome.over_age + outcome.lost - outcome.stored < 0.05,
        "tail prompts": outcome.tail_share >= 0.045,
        "tail tokens": outcome.tail_in_mask + outcome.tail_from_store >= 0.5,
    }
    return [name for name, reached in goals.items() if not reached]
