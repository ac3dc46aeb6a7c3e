"""Reward models of `--reward_model` beside the training.

    on the CPU, or with `--reward_devices`     a process of its own for each, with its own copy of the model
    else                                       a thread of rank 0, which asks the copy that ms-swift loaded
    with DeepSpeed or FSDP                     as in ms-swift: every rank, when a batch is picked up

A card has room for one copy, not for two, and a process has no other card unless it is given one. A copy that an engine
spreads over ranks answers only where all of them ask.
"""

from typing import Any

from swift.utils import get_logger

from swift_rlx.integration.rollout_fields import device_ids
from swift_rlx.integration.run_reward_model import described_model, origin_of_model
from swift_rlx.trainers.reward_crew import RunReward

logger = get_logger()


def rewards_beside(trainer: Any) -> list[RunReward | None]:
    """The rewards of a trainer by their columns; None in the place of a model that only all ranks together can ask.

    On rank 0, each time the pipeline starts.
    """
    functions = trainer.checked_rewards
    models = trainer.reward_funcs[len(functions) :]
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return [*functions, *(None for _ in models)]
    return [*functions, *(_beside(trainer, at, len(models)) for at in range(len(models)))]


def _beside(trainer: Any, at: int, num_models: int) -> RunReward:
    """Number `at` of the reward models."""
    args, column = trainer.args, len(trainer.checked_rewards) + at
    name, model = trainer.reward_keys[column], trainer.reward_funcs[column]
    devices = devices_of(at, num_models, args.reward_devices)
    origin = None
    if devices or trainer.accelerator.device.type == "cpu":
        plugin = (args.reward_model_plugin or ["default"] * num_models)[at]
        template = trainer.reward_model_templates[at]
        origin = origin_of_model(name, model, template, plugin, trainer, len(devices))
    reward = described_model(name, trainer.reward_model_plugins[column], model, origin=origin)
    logger.info(
        f"swift-rlx: the reward model {name} scores beside the training, in"
        f" {'a process of its own' if origin else 'a thread of rank 0'}{' on ' + ','.join(devices) if devices else ''}"
    )
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    return trainer.reward_crew.add_model(reward, environment, args.rollout_start_timeout_s)


def devices_of(at: int, num_models: int, devices: str | None) -> tuple[str, ...]:
    """The accelerators of model number `at`: an even part of `--reward_devices`, one at least if there are any.

    >>> [devices_of(at, 2, "4,5,6,7") for at in range(2)], [devices_of(at, 3, "4,5") for at in range(3)]
    ([('4', '5'), ('6', '7')], [('4',), ('5',), ('4',)])
    """
    ids = device_ids(devices, "reward_devices")
    if len(ids) < num_models:
        return (ids[at % len(ids)],) if ids else ()
    return ids[at * len(ids) // num_models : (at + 1) * len(ids) // num_models]
