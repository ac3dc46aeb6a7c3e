"""`swift-rlx simulate`: plan machines before renting them; the real scheduler on a virtual clock."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from swift_rlx.errors import ConfigError

if TYPE_CHECKING:
    from swift_rlx.simulation import Outcome, Setting
    from swift_rlx.simulation.tables import Case

HELP = "simulate a run: steps per hour, how busy the trainer is, staleness and waste"
EXAMPLE = """\
example:
    swift-rlx simulate --train-s 1 --generate-s 1.6 --workers 2 --max-staleness 0 1 2 4
    swift-rlx simulate --table scheduling

A worker count and a staleness bound make a row. Times are seconds; an answer's latency is log-normal and does not
depend on the load. The docs explain the table: docs/en/scheduling.md.
"""
COLUMNS = (
    f"{'steps/h':>8}{'busy':>7}{'staleness':>11}{'max':>5}{'in mask':>9}{'over age':>10}{'lost':>7}{'tail':>7}"
    f"{'its mask':>10}"
)
MOST_SEEDS = 100
FILL_COLUMNS = f"{'stored/h':>10}{'from store':>12}{'of tail':>9}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The setting; lists make one row for each combination."""
    add = parser.add_argument
    add("--train-s", type=float, default=1.0, help="one training step (default %(default)s)")
    add("--generate-s", type=float, default=1.6, help="median latency of one answer (default %(default)s)")
    add("--sigma", type=float, default=0.5, help="spread of the logarithm of latency (default %(default)s)")
    add("--workers", type=int, nargs="+", default=[1], help="numbers of workers (default 1)")
    add("--slots", type=int, default=96, help="answers in flight per worker (default %(default)s)")
    add("--batch-groups", type=int, default=32, help="prompts of a step (default %(default)s)")
    add(
        "--batches-per-step",
        type=int,
        default=1,
        help="pick-ups of a step, each of its part of the prompts (default %(default)s)",
    )
    add("--group-size", type=int, default=1, help="answers per prompt (default %(default)s)")
    add("--max-staleness", type=int, nargs="+", default=[0, 1, 2, 4], help="bounds (default 0 1 2 4)")
    add(
        "--reserved-share",
        type=float,
        default=0.0,
        help="share of the slots kept for the slowest 5 %% of prompts, as if lengths were known (default 0)",
    )
    add(
        "--fill-the-wait",
        action="store_true",
        help="keep what was trained, and add it to a step while no fresh batch is ready",
    )
    add("--publish-s", type=float, default=0.0, help="applying weights on a worker (default %(default)s)")
    add("--score-s", type=float, default=0.0, help="scoring a group (default %(default)s)")
    add(
        "--weight-update",
        choices=["keep", "pin", "drain", "abort"],
        default="keep",
        help="what happens to answers in flight when weights are published (default %(default)s)",
    )
    add(
        "--train-order",
        choices=["completion", "admission"],
        default="completion",
        help="which ready group trains next (default %(default)s)",
    )
    add("--steps", type=int, default=300, help="training steps (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of the latencies (default %(default)s)")
    add("--seeds", type=int, default=3, help="runs per row of --table (default %(default)s)")
    add("--table", choices=["scheduling"], help="compare admission rules in six cases instead; minutes")


def run(options: argparse.Namespace) -> int:
    """Print a table."""
    _refuse_what_has_no_effect(options)
    if options.table:
        if not 1 <= options.seeds <= MOST_SEEDS:
            limit = "at least 1" if options.seeds < 1 else f"at most {MOST_SEEDS}"
            raise ConfigError(f"--seeds {options.seeds} is refused: use {limit}")
        with _named_by_flag():
            _print_scheduling_table(options.steps, options.seeds)
        return 0
    from swift_rlx.simulation import simulate

    with _named_by_flag():
        fills, settings = options.fill_the_wait, list(_settings(options))
    print(f"{'workers':>7}{'bound':>7}{COLUMNS}{FILL_COLUMNS if fills else ''}")
    for setting in settings:
        outcome = simulate(setting)
        line = f"{_line(outcome)}{_fill_line(outcome) if fills else ''}"
        print(f"{setting.workers:>7}{setting.max_staleness:>7}{line}", flush=True)
    return 0


def _refuse_what_has_no_effect(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for a setting beside --table, which has its own, and for --seeds without it."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, default in vars(parser.parse_args([])).items():
        is_used = name in ("table", "steps", "seeds") if options.table else name != "seeds"
        if not is_used and (value := getattr(options, name)) != default:
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            instead = (
                "--table scheduling takes --steps and --seeds" if options.table else "use --seed, or --table"
            )
            raise ConfigError(
                f"--{name.replace('_', '-')} {shown} is refused: it would change nothing; {instead}"
            )


@contextlib.contextmanager
def _named_by_flag() -> Iterator[None]:
    """A refused `Setting` begins with the name of its field, which is that of a flag here."""
    try:
        yield
    except ConfigError as error:
        field, _, rest = str(error).partition(" ")
        raise ConfigError(f"--{field.replace('_', '-')} {rest}") from error


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    from swift_rlx.backends import WeightUpdate
    from swift_rlx.scheduler import TrainOrder
    from swift_rlx.simulation import Setting

    if options.slots < 1:
        raise ConfigError(f"slots {options.slots} is refused: use at least 1")
    base = Setting(
        train_s=options.train_s,
        generate_s=options.generate_s,
        sigma=options.sigma,
        batch_groups=options.batch_groups,
        batches_per_step=options.batches_per_step,
        group_size=options.group_size,
        slots=options.slots,
        reserved_share=options.reserved_share,
        fill_the_wait=options.fill_the_wait,
        publish_s=options.publish_s,
        score_s=options.score_s,
        weight_update=WeightUpdate(options.weight_update),
        train_order=TrainOrder(options.train_order),
        steps=options.steps,
        seed=options.seed,
    )
    for workers in options.workers:
        for bound in options.max_staleness:
            yield replace(base, workers=workers, slots=workers * options.slots, max_staleness=bound)


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.steps_per_h:>8.1f}{outcome.trainer_busy:>7.1%}{outcome.mean_staleness:>11.2f}"
        f"{outcome.max_staleness:>5}{outcome.in_mask:>9.1%}{outcome.over_age:>10.1%}{outcome.lost:>7.1%}"
        f"{outcome.tail_share:>7.1%}{outcome.tail_in_mask:>10.1%}"
    )


def _fill_line(outcome: Outcome) -> str:
    return f"{outcome.stored_steps_per_h:>10.1f}{outcome.from_store:>12.1%}{outcome.tail_from_store:>9.1%}"


def _print_scheduling_table(steps: int, seeds: int) -> None:
    from swift_rlx.simulation.tables import scheduling_cases

    for case in scheduling_cases(steps, seeds):
        _print_case(case)


def _print_case(case: Case) -> None:
    from swift_rlx.simulation.tables import missed

    print(f"\ntrain {case.train_s:g} s, sigma {case.sigma:g}")
    print(f"{'rule':<32}{COLUMNS}{FILL_COLUMNS}{'over bound':>12}{'of totals':>11}  misses")
    for row in case.rows:
        print(
            f"{row.rule:<32}{_line(row.outcome)}{_fill_line(row.outcome)}{row.outcome.trained_over_bound:>12.1%}"
            f"{row.relative:>11.1%}  {', '.join(missed(row)) or '-'}",
            flush=True,
        )
