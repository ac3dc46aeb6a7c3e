"""The arguments of training from a trajectory store, and what they mean together."""

import math
import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import MAX_REUSE, offline_ratio

if TYPE_CHECKING:
    from swift_rlx.store import Snapshot

# No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.

Objective = Literal["auto", "rloo_is", "softmax_ce", "softmax_ce_forward_kl", "awac", "cql", "rloo"]
OWN_OBJECTIVES = ("auto", "rloo_is", "rloo")
"""What the stored batches of a run with fresh ones train: the loss of the run's own type, weighted or not."""
MOST_REUSE = 255


@dataclass
class StoreFields:
    """New fields of `swift rlhf`; see fields.py."""

    trajectory_store: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Directory of a store of scored trajectories, made if it is not there: the run adds"
            " what it generates, and trains from it by --offline_ratio and --fill_the_wait. A store as --dataset:"
            " a run on stored groups alone."
        },
    )
    offline_ratio: float | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Share of the generation batches that come from the store, 0 to 1. Default: 0; 1 for a"
            " store as --dataset."
        },
    )
    online_every: int | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] One generation batch in N is fresh, the others are from the store: the same as"
            " --offline_ratio 1 - 1/N."
        },
    )
    max_reuse: int = field(
        default=MAX_REUSE,
        metadata={"help": "[swift-rlx] How often a group may train from the store, after it has been fresh."},
    )
    max_store_age: int | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Optimizer steps since the oldest weights that made a token of a stored group, at"
            " most; groups of other runs have no age and are left out. Default: no limit."
        },
    )
    min_store_spread: float = field(
        default=0.0,
        metadata={
            "help": "[swift-rlx] Smallest difference between the best and the worst reward of a stored group."
        },
    )
    min_store_reward: float | None = field(
        default=None,
        metadata={"help": "[swift-rlx] Smallest best reward of a stored group. Default: no limit."},
    )
    fill_the_wait: bool = field(
        default=False,
        metadata={
            "help": "[swift-rlx] While no fresh batch is ready, add the gradient of a few stored groups to the step"
            " that waits for it."
        },
    )
    offline_objective: Objective = field(
        default="auto",
        metadata={
            "help": "[swift-rlx] What stored batches train. auto: rloo_is, the importance-weighted loss, where they"
            " have log-probs, else awac. rloo: without weights, only with --off_policy_correction none too. The others"
            " are for a store as --dataset."
        },
    )


FIELD_DEFAULTS = {each.name: each.default for each in fields(StoreFields)}
CHOOSING = ("max_reuse", "max_store_age", "min_store_spread", "min_store_reward", "offline_objective")
"""What chooses among stored groups, or says how they train: nothing where none train."""
ONLY_WITH_FRESH = ("online_every", "max_reuse", "max_store_age", "fill_the_wait")
"""What means nothing in a run on stored groups alone."""


def is_store(name: str) -> bool:
    """Whether a directory, or a folder of an object store, holds a trajectory store."""
    if os.path.isdir(name):
        return os.path.isfile(os.path.join(name, "store.json"))
    if "://" not in name:
        return False
    from swift_rlx.store.place import place_at

    return place_at(name).read("store.json") is not None


def dataset_store(values: Any) -> str | None:
    """The store that `--dataset` names; None for data sets of prompts.

    Raises ConfigError for a store beside other data sets.
    """
    names = [str(name) for name in getattr(values, "dataset", None) or []]
    stores = [path for name in names if is_store(path := _path(name))]
    if stores and len(names) > 1:
        raise ConfigError(
            f"--dataset {' '.join(names)} is refused: a store of trajectories, {stores[0]}, is trained alone; give it"
            " alone, or as --trajectory_store beside a --dataset of prompts"
        )
    return stores[0] if stores else None


def _path(name: str) -> str:
    """Of `PATH#N`, N rows of a data set, the path."""
    return name if os.path.exists(name) else name.rpartition("#")[0] or name


def is_offline(values: Any) -> bool:
    """Whether the run trains on stored groups alone; after `resolve_store`, or where `--dataset` is a store."""
    return values.offline_ratio == 1 or dataset_store(values) is not None


def resolve_store(values: Any, algorithm_name: str) -> None:
    """Check the fields of the store, in place; after `resolve_rollout`.

    `offline_ratio` becomes the share that is in force, `trajectory_store` the store that is read: also the one that
    `--dataset` names. Raises ConfigError for a value out of range and for a field that has no effect.
    """
    _check_ranges(values)
    source = dataset_store(values)
    if source is not None and values.trajectory_store not in (None, source):
        raise ConfigError(
            f"--trajectory_store {values.trajectory_store} is refused beside --dataset {source}, which is a store"
            " itself; give one of them"
        )
    has_ratio = values.offline_ratio is not None or values.online_every is not None
    values.offline_ratio = offline_ratio(values.offline_ratio, values.online_every)
    if source is not None:
        if has_ratio and values.offline_ratio != 1:
            raise ConfigError(
                f"--offline_ratio {values.offline_ratio:g} is refused with --dataset {source}: a store as data set has"
                " no fresh batches; give it as --trajectory_store beside a --dataset of prompts"
            )
        values.trajectory_store, values.offline_ratio = source, 1.0
    elif values.trajectory_store is None:
        _refuse_changed(values, FIELD_DEFAULTS, "a store; drop it, or give --trajectory_store DIR")
        return
    if values.offline_ratio == 1:
        _check_offline(values)
    else:
        _check_hybrid(values, algorithm_name)


def _check_ranges(values: Any) -> None:
    if not 1 <= values.max_reuse <= MOST_REUSE:
        raise ConfigError(
            f"--max_reuse {values.max_reuse} is refused: a stored group trains at least once and at most {MOST_REUSE}"
            " times; to train from no store leave --offline_ratio at 0"
        )
    if values.max_store_age is not None and values.max_store_age < 1:
        raise ConfigError(
            f"--max_store_age {values.max_store_age} is refused: what is stored is at least 1 optimizer step old"
        )
    if not 0 <= values.min_store_spread < math.inf:
        raise ConfigError(
            f"--min_store_spread {values.min_store_spread:g} is refused: it is a difference of rewards, from 0 on"
        )
    if values.min_store_reward is not None and not math.isfinite(values.min_store_reward):
        raise ConfigError(f"--min_store_reward {values.min_store_reward:g} is refused: it is a finite reward")


def _check_offline(values: Any) -> None:
    """A run on stored groups alone."""
    _refuse_changed(values, ONLY_WITH_FRESH, "fresh batches, of which --offline_ratio 1 has none; drop it")
    from swift_rlx.store import TrajectoryStore

    store = values.trajectory_store
    if not (
        is_store(store)
        and any(one.num_rows for one in TrajectoryStore.open(store).manifest().shards.values())
    ):
        raise ConfigError(
            f"--offline_ratio 1 is refused with --trajectory_store {store}: there are no stored groups; fill it with"
            " `swift-rlx store import` or a run with a lower ratio"
        )


def _check_hybrid(values: Any, algorithm_name: str) -> None:
    """A run that adds to its store, and may train from it too."""
    if os.path.isfile(values.trajectory_store):
        raise ConfigError(
            f"--trajectory_store {values.trajectory_store} is refused: it is a file; give the directory of a store, or"
            " one that is not there yet"
        )
    if not values.async_rollout:
        raise ConfigError(
            f"--trajectory_store {values.trajectory_store} is refused without the asynchronous pipeline, which keeps"
            " the log-probs that stored tokens were sampled with; leave --async_rollout true"
        )
    from swift_rlx.store import TrajectoryStore

    TrajectoryStore.check_new(values.trajectory_store)
    if not (values.offline_ratio or values.fill_the_wait):
        _refuse_changed(
            values, CHOOSING, "--offline_ratio above 0 or --fill_the_wait true; drop it, or add one"
        )
        return
    objective, correction = values.offline_objective, values.off_policy_correction
    if objective not in OWN_OBJECTIVES:
        raise ConfigError(
            f"--offline_objective {objective} is refused beside fresh batches, whose stored ones train by the loss of"
            " --rlhf_type with importance weights; leave it at auto, or give the store as --dataset"
        )
    if objective != "auto" and algorithm_name != "rloo":
        raise ConfigError(
            f"--offline_objective {objective} does not belong to --rlhf_type {algorithm_name}; leave it at auto"
        )
    if (objective == "rloo") != (correction == "none"):
        raise ConfigError(
            f"--offline_objective {objective} with --off_policy_correction {correction} is refused: stored groups are"
            " of other policies, and their gradient is biased without importance weights; leave both at auto, or force"
            " it with --offline_objective rloo and --off_policy_correction none, both"
            if algorithm_name == "rloo"
            else f"--off_policy_correction none is refused with stored groups under --rlhf_type {algorithm_name}: they"
            " are of other policies, and their gradient is biased without importance weights; leave it at auto"
        )
    if values.fill_the_wait:
        _refuse_fill(values)
    if is_store(values.trajectory_store):
        refuse_without_logprobs(TrajectoryStore.open(values.trajectory_store).snapshot())


def refuse_without_logprobs(snapshot: "Snapshot") -> None:
    """Raise ConfigError for stored groups that cannot be corrected for their policy, beside fresh ones."""
    if missing := snapshot.num_without_logprobs():
        raise ConfigError(
            f"{missing} of {snapshot.num_rows} answers in the store '{snapshot.url}' have no log-probs, so that their"
            " gradient cannot be corrected for the policy that made them; train on it alone, with"
            f" --dataset {snapshot.url}, or give another --trajectory_store"
        )


def _refuse_fill(values: Any) -> None:
    for name in ("deepspeed", "fsdp"):
        if getattr(values, name, None):
            raise ConfigError(
                f"--fill_the_wait true cannot be used with --{name} {getattr(values, name)}, which counts the"
                " micro-batches of a step by itself; use DDP or drop the flag"
            )
    if (ranks := getattr(values, "sequence_parallel_size", 1) or 1) > 1:
        raise ConfigError(
            f"--fill_the_wait true cannot be used with --sequence_parallel_size {ranks}, which makes micro-batches over"
            " several ranks; drop one of them"
        )


def _refuse_changed(values: Any, names: Any, needs: str) -> None:
    changed = [name for name in names if getattr(values, name) != _default(values, name)]
    if changed:
        given = " ".join(f"--{name} {str(getattr(values, name)).lower()}" for name in changed)
        raise ConfigError(f"{given} has no effect without {needs}")


def _default(values: Any, name: str) -> Any:
    """What a field is where the user left it alone; the ratio has its number by then."""
    return 0.0 if name == "offline_ratio" and values.online_every is None else FIELD_DEFAULTS[name]
