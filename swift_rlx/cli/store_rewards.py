"""`swift-rlx store score | rescore`: rewards of the rows of a store."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from swift_rlx.cli.store_command import StoreCommand
from swift_rlx.errors import ConfigError

if TYPE_CHECKING:
    from swift_rlx.cli.reward_pool import RewardPool
    from swift_rlx.store import Snapshot, TrajectoryStore
    from swift_rlx.store.recipe import Recipe


def _shared_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--workers",
        dest="reward_workers",
        type=int,
        default=1,
        help="processes that call the rewards (default %(default)s: this one)",
    )
    caller_arguments(parser)


def caller_arguments(parser: argparse.ArgumentParser) -> None:
    """How rewards are found, and what becomes of their errors."""
    add = parser.add_argument
    add("--external-plugins", type=Path, nargs="+", default=[], help="Python files that register rewards")
    add(
        "--reward-on-error",
        default="raise",
        help="raise, none or value:X, as in training (default %(default)s)",
    )


def _score_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    source_arguments(parser)
    add(
        "--stored",
        nargs="+",
        default=[],
        metavar="NAME@VERSION",
        help="values that rows have, such as people's scores; behind --rewards in the order of --weights",
    )
    add(
        "--again",
        action="store_true",
        help="call the rewards also for rows that have a value of this version",
    )
    _shared_arguments(parser)


def source_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rewards, and how they are put together."""
    add = parser.add_argument
    add("--rewards", nargs="+", default=[], metavar="NAME", help="rewards, as --reward_funcs names them")
    add("--weights", type=float, nargs="+", help="of all sources in their order (default 1 each)")
    add(
        "--normalize",
        choices=["none", "dataset", "query"],
        help="each source as z-score, std at least 1e-6, clipped at 3, over the whole store or the answers of a prompt"
        " (default: dataset for several sources, none for one)",
    )


def _score(options: argparse.Namespace) -> int:
    from swift_rlx.store import TrajectoryStore

    check_weights(options)
    store = TrajectoryStore.open(options.store)
    with reward_pool(options, options.rewards) as pool:
        return score_with(pool, store, options)


def check_weights(options: argparse.Namespace) -> None:
    """Raise `ConfigError` unless there are sources, each once, and a weight for each or none."""
    count, given = len(options.rewards) + len(options.stored), len(options.weights or ())
    if not count or given not in (0, count):
        raise ConfigError(
            f"{count} sources with {given or count} --weights are refused: name at least one with --rewards or"
            " --stored, and give none or as many weights"
        )
    names = [*options.rewards, *(text.partition("@")[0] for text in options.stored)]
    if len(set(names)) < count:
        raise ConfigError(f"sources {', '.join(names)} are refused: each name may be given once")


def score_with(pool: RewardPool, store: TrajectoryStore, options: argparse.Namespace) -> int:
    """Give all trajectories rewards of the sources that the options name, and say what was done; the exit code."""
    from swift_rlx.store.recipe import Recipe, Scale, Source

    stored = list(map(_stored, options.stored))
    _check_stored(store.snapshot(), stored)
    versions = [*((name, pool.version(name)) for name in options.rewards), *stored]
    weights = options.weights or [1.0] * len(versions)
    sources = [Source(*one, weight) for one, weight in zip(versions, weights, strict=True)]
    scale = options.normalize or ("dataset" if len(sources) > 1 else "none")
    return _rewarded(store, Recipe(tuple(sources), Scale(scale)), pool, again=options.again)


def _check_stored(snapshot: Snapshot, stored: list[tuple[str, str]]) -> None:
    """Raise `ConfigError` for values that no row has, which would take the place of those that there are."""
    from swift_rlx.store.rescoring import stored_versions

    known = stored_versions(snapshot)
    there = ", ".join(f"{name}@{version}" for name in sorted(known) for version in sorted(known[name]))
    for name, version in stored:
        if version not in known.get(name, ()):
            raise ConfigError(
                f"--stored {name}@{version} is refused: no row has such values; there are {there or 'none'}"
            )


def _rescore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stored",
        nargs="+",
        default=[],
        metavar="NAME@VERSION",
        help="which version of values that nothing computes",
    )
    _shared_arguments(parser)


def _rescore(options: argparse.Namespace) -> int:
    """Make all rewards of the store by the recipe that it has, with the versions of now."""
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.store.rescoring import current_recipe, stored_versions

    store = TrajectoryStore.open(options.store)
    snapshot = store.snapshot()
    stored = dict(map(_stored, options.stored))
    _check_stored(snapshot, list(stored.items()))
    known = stored_versions(snapshot)
    with reward_pool(options, [name for name in known if name not in stored], only_offered=True) as pool:
        for name in sorted(set(known) - set(pool.names)):
            print(f"{name}: its stored values are kept; nothing that is installed computes it")
        versions = {**stored, **{name: pool.version(name) for name in pool.names}}
        return _rewarded(store, current_recipe(snapshot, known, versions), pool, again=False)


def _rewarded(store: TrajectoryStore, recipe: Recipe, pool: RewardPool, *, again: bool) -> int:
    from swift_rlx.store.scoring import score_store

    snapshot: Snapshot = store.snapshot()
    done = score_store(store, snapshot, recipe, pool.evaluators(snapshot), again=again)
    for name, moments in done.moments.items():
        asked = done.evaluated.get(name, 0)
        print(
            f"{name}: {asked:,} computed, mean {moments.mean:.6g}, std {moments.std:.6g} of {moments.count:,}"
        )
    print(f"{done.rows:,} trajectories have rewards of '{done.recipe}'; {done.unscored:,} of them none")
    return 0


def reward_pool(options: argparse.Namespace, names: list[str], *, only_offered: bool = False) -> RewardPool:
    """What calls the rewards. Raises `PluginError` for one that nobody offers, and `ConfigError`."""
    from swift_rlx.cli.reward_pool import PoolOptions, RewardPool
    from swift_rlx.rewards import OnError

    if addresses := [name for name in names if "://" in name]:
        raise ConfigError(
            f"--rewards {' '.join(addresses)} is refused: served rewards score in training; here name rewards that are"
            " installed or in --external-plugins"
        )
    if options.reward_workers < 1:
        raise ConfigError(f"rewards in {options.reward_workers} processes are refused: use at least 1")
    plugins = tuple(str(path) for path in options.external_plugins)
    on_error = OnError.parse(options.reward_on_error, "--reward-on-error")
    return RewardPool(
        names, PoolOptions(on_error, options.reward_workers, plugins), only_offered=only_offered
    )


def _stored(text: str) -> tuple[str, str]:
    name, mark, version = text.partition("@")
    if not name or not mark:
        raise ConfigError(
            f"--stored {text} is refused: write NAME@VERSION, as `swift-rlx store info` shows it"
        )
    return name, version


COMMANDS = {
    "score": StoreCommand(
        "give all trajectories rewards",
        "answers.store --rewards accuracy format --weights 1 0.2 --workers 4",
        _score_arguments,
        _score,
    ),
    "rescore": StoreCommand(
        "compute again what rewards of another version gave, and combine as before",
        "answers.store",
        _rescore_arguments,
        _rescore,
    ),
}
