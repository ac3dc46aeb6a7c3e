"""A run on stored groups alone: what trains, checked and settled before the model is loaded.

`--dataset STORE`, or `--trajectory_store STORE --offline_ratio 1`. Nothing is generated and nothing is scored: the
store has completions and rewards.
"""

import json
import os
from dataclasses import replace
from typing import Any

from swift.utils import get_logger

from swift_rlx.algorithms.offline import make_objective, resolve_auto
from swift_rlx.algorithms.offline.constraint_settings import constraint_plan
from swift_rlx.algorithms.offline.objective_settings import (
    DEFAULT_BETA,
    needs_groups,
    objective_with,
    parse_settings,
)
from swift_rlx.errors import ConfigError
from swift_rlx.integration.algorithm_table import Algorithm
from swift_rlx.integration.offline_fields import FIELD_DEFAULTS
from swift_rlx.integration.rollout_fields import ONLY_ASYNC
from swift_rlx.integration.store_fields import dataset_store, is_store

logger = get_logger()
POLICY_GRADIENT = ("rloo_is", "rloo")
"""Objectives that are RLOO's own loss, with and without importance weights."""
REMOTE_STORE = "stored_groups"
GENERATING = (
    *ONLY_ASYNC,
    "max_staleness",
    "use_vllm",
    "dynamic_sample",
    "multi_turn_scheduler",
    "use_gym_env",
    "gym_env",
    "reward_normalize",
    "reward_ensemble",
)
"""Arguments of what such a run does not do: generate, and make rewards."""
OFF_POLICY = (
    "off_policy_correction",
    "off_policy_cap",
    "off_policy_k3_max",
    "off_policy_sequence_mask_delta",
    "ess_gate",
)


def offline_store(args: Any) -> str | None:
    """The store that the run trains on alone; None for a run with fresh batches.

    Raises ConfigError for prompts beside a store that is all that trains.
    """
    if (source := dataset_store(args)) is not None:
        return source
    if args.offline_ratio != 1 or args.trajectory_store is None:
        return None
    if args.dataset:
        raise ConfigError(
            f"--offline_ratio 1 is refused beside --dataset {' '.join(map(str, args.dataset))}, whose prompts would not"
            f" be trained; drop --dataset, or use a lower ratio"
        )
    if not is_store(args.trajectory_store):
        raise ConfigError(
            f"--offline_ratio 1 is refused: --trajectory_store {args.trajectory_store} is no store; fill one with"
            " `swift-rlx store import`, or use a lower ratio"
        )
    return str(args.trajectory_store)


def settle_offline(args: Any, algorithm: Algorithm, defaults: dict[str, Any]) -> Algorithm:
    """Make a run on stored groups of `args`, in place, if it is one; returns the algorithm with what that changes.

    `rlx_offline` then says what trains. Raises ConfigError and StoreError.
    """
    store = offline_store(args)
    if store is None:
        _refuse_settings(args)
        return algorithm
    _refuse(args, store, algorithm, defaults)
    settings = parse_settings(args.offline_settings)
    groups, name = _choose(args, store, settings)
    beta = _settle_beta(args, name, settings, algorithm)
    _check_constraints(args, name, settings, beta)
    min_size = _settle_group_size(args, groups, needs_groups(name, settings), defaults)
    args.rlx_offline = {
        "store": store,
        "objective": name,
        "settings": settings,
        "beta": beta,
        "recipe": groups.recipe,
        "sealed": dict(groups.snapshot.manifest.sealed if groups.sealed is None else groups.sealed),
        "longest_completion": int(groups.lengths()[0].max()),
        "min_size": min_size,
    }
    _settle_dataset(args, store, groups)
    _tell(store, groups, name)
    return replace(algorithm, min_generations=min_size)


def _settle_dataset(args: Any, store: str, groups: Any) -> None:
    """ms-swift loads the groups under the store's path; a URL, which it takes apart, gets a name in its place."""
    from swift_rlx.integration.stored_dataset import register_store

    given = str(args.dataset[0]) if args.dataset else store
    name = store if os.path.isdir(store) else REMOTE_STORE
    args.dataset = [name + given[len(store) :]]  # with its #N
    args.trajectory_store, args.offline_ratio, args.async_rollout = store, 1.0, False
    register_store(name, groups)


def open_groups(store: str, recipe: str | None, sealed: Any, args: Any, min_members: int) -> Any:
    """The groups that may train. Raises StoreError where there are none."""
    from swift_rlx.store import GroupFilter, TrajectoryStore
    from swift_rlx.store.trainable import TrainableGroups

    wanted = GroupFilter(
        min_members=min_members,
        min_spread=args.min_store_spread,
        min_best=args.min_store_reward,
        recipe=recipe,
        sealed=sealed,
    )
    return TrainableGroups(TrajectoryStore.open(store).snapshot(), wanted)


def _choose(args: Any, store: str, settings: dict[str, Any]) -> tuple[Any, str]:
    """The groups, and the objective that trains on them."""
    name, sealed = args.offline_objective, _sealed_before(args)
    min_members = 2 if needs_groups(name, settings) else 1
    groups = open_groups(store, args.store_recipe, sealed, args, min_members)
    if name == "auto":
        name = resolve_auto(has_rewards=True, has_behavior_logprobs=not groups.num_without_logprobs())
        if needs_groups(name, settings) != (min_members == 2):
            groups = open_groups(store, args.store_recipe, sealed, args, 1)
    if (name == "rloo") != (name in POLICY_GRADIENT and args.off_policy_correction == "none"):
        if name == "rloo":
            make_objective(name)  # raises: without weights the gradient is biased
        raise ConfigError(
            "--off_policy_correction none is refused with --offline_objective rloo_is, which is weighted; to train"
            " without weights, whose gradient is biased, give --offline_objective rloo too"
        )
    return groups, name


def _sealed_before(args: Any) -> dict[str, int] | None:
    """The rounds of the store that a run which is resumed has seen; what was added since does not train in it."""
    if not args.resume_from_checkpoint or args.resume_only_model:
        return None
    path = os.path.join(args.resume_from_checkpoint, "rlx", "state.json")
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, int] = json.load(file)["order"]["store"]["sealed"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the trainer says what is wrong with the checkpoint
    return found


def _refuse(args: Any, store: str, algorithm: Algorithm, defaults: dict[str, Any]) -> None:
    if algorithm.name != "rloo":
        raise ConfigError(
            f"--rlhf_type {algorithm.name} is refused with the store {store} as data set: stored groups alone train by"
            " --rlhf_type rloo and its --offline_objective"
        )
    if args.offline_ratio not in (None, 1) or args.online_every is not None:
        ratio = args.offline_ratio if args.online_every is None else args.online_every
        flag = "offline_ratio" if args.online_every is None else "online_every"
        raise ConfigError(
            f"--{flag} {ratio:g} is refused with --dataset {store}: a store as data set has no fresh batches; give it"
            " as --trajectory_store beside a --dataset of prompts"
        )
    changed = [name for name in GENERATING if getattr(args, name) != defaults[name]]
    if changed:
        given = " ".join(f"--{name} {_shown(getattr(args, name))}" for name in changed)
        raise ConfigError(
            f"{given} has no effect on the stored groups of {store}, which have completions and rewards; drop it"
        )
    if args.split_dataset_ratio:
        raise ConfigError(
            f"--split_dataset_ratio {args.split_dataset_ratio:g} is refused with the store {store} as data set:"
            " evaluation generates and scores anew; give prompts as --val_dataset with --reward_funcs, or drop it"
        )
    if args.val_dataset and not (args.reward_funcs or args.reward_model):
        raise ConfigError(
            f"--val_dataset {_shown(args.val_dataset)} is refused without --reward_funcs: evaluation generates and"
            " scores anew, and the rewards of the store are of its own completions; add one, or drop it"
        )
    if args.reward_funcs and not args.val_dataset:
        raise ConfigError(
            f"--reward_funcs {_shown(args.reward_funcs)} has no effect on the stored groups of {store}, which train by"
            " the rewards of the store; give the store others with `swift-rlx store score`, or drop it"
        )


def _settle_beta(args: Any, name: str, settings: dict[str, Any], algorithm: Algorithm) -> float:
    """The weight of the KL; `args.beta` becomes what ms-swift has to load a reference model for."""
    if name in POLICY_GRADIENT:
        if settings:
            raise ConfigError(
                f"--offline_settings {args.offline_settings} is refused for --offline_objective {name}, which is set by"
                " --beta, --off_policy_correction, --off_policy_cap and --epsilon"
            )
        return float(algorithm.beta if args.beta is None else args.beta)
    beta = float(DEFAULT_BETA[name] if args.beta is None else args.beta)
    needs = objective_with(name, settings, beta).needs
    for flag in OFF_POLICY:
        if (value := getattr(args, flag)) not in (None, False, "auto", 2.0):
            raise ConfigError(
                f"--{flag} {_shown(value)} has no effect with --offline_objective {name}, which has no importance"
                " weights; drop it, or use rloo_is"
            )
    for flag in ("padding_free", "share_prompt") if needs.logits else ():
        if getattr(args, flag):
            raise ConfigError(
                f"--{flag} true is refused with --offline_objective {name}, which needs all logits; drop it"
            )
    if needs.target and args.tuner_type == "full":
        raise ConfigError(
            f"--tuner_type full is refused with --offline_objective {name}, whose frozen copy is the model without its"
            " adapter; use lora"
        )
    args.beta = beta if needs.reference else 0.0
    return beta


def _check_constraints(args: Any, name: str, settings: dict[str, Any], beta: float) -> None:
    plan = constraint_plan(args.constraint_filter, args.constraint_settings)
    if plan is None or plan.penalty is None or name in POLICY_GRADIENT:
        return
    if objective_with(name, settings, beta).needs.pairwise:
        raise ConfigError(
            f"--constraint_filter {args.constraint_filter} is refused for --offline_objective {name}, which compares by"
            " the scores of each source and knows no reward to lower; use reject, or the objective awac"
        )


def _settle_group_size(args: Any, groups: Any, compares: bool, defaults: dict[str, Any]) -> int:
    """`num_generations` becomes the places of a group in a batch; returns the least that there have to be."""
    largest, given = int(groups.sizes.max()), args.num_generations
    if given == defaults["num_generations"]:
        args.num_generations = min(given, largest)
    elif given > largest:
        raise ConfigError(
            f"--num_generations {given} is refused: no group of the store has more than {largest} completions with a"
            f" reward, and further places would stay empty; use at most {largest}"
        )
    return 2 if compares else 1


def _refuse_settings(args: Any) -> None:
    """Of a run that has no store as data set: what is for one alone, and a directory that was meant to be one."""
    if args.offline_objective != "auto" and args.trajectory_store is None:
        raise ConfigError(
            f"--offline_objective {args.offline_objective} is refused: --dataset {_shown(args.dataset or 'none')} is no"
            " store of trajectories, whose directory has a store.json; give one, or drop the objective"
        )
    for name, default in FIELD_DEFAULTS.items():
        if (value := getattr(args, name)) != default:
            raise ConfigError(
                f"--{name} {value} has no effect without a store as --dataset, whose groups alone train; drop it"
            )


def _tell(store: str, groups: Any, name: str) -> None:
    left_out = ", ".join(f"{count} {reason}" for reason, count in groups.left_out.items() if count) or "none"
    logger.info(
        f"swift-rlx: the store {store} trains by {name}: {len(groups.ids)} groups with {groups.num_rows} completions,"
        f" rewards of '{groups.recipe}'; groups left out: {left_out}"
    )


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
