"""Stock arguments that cannot work with our algorithms, each refused in one sentence before the model is loaded.

Every check reads the arguments as the user gave them, before ms-swift's own `__post_init__` fills in defaults; an
argument that was left alone has its dataclass default and is never refused.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swift.utils import get_dist_setting, get_logger

from swift_rlx.errors import ConfigError
from swift_rlx.integration.algorithm_table import ALIASES, Algorithm
from swift_rlx.integration.checkpoint_files import refuse_incomplete
from swift_rlx.integration.data_files import check_data_files
from swift_rlx.integration.reward_fields import check_ensemble

logger = get_logger()


@dataclass(frozen=True)
class Refusal:
    """`argument` is refused when `applies(value)`; `advice` says what to use instead."""

    argument: str
    applies: Callable[[Any], bool]
    advice: str


def _is_set(value: Any) -> bool:
    return value is not None and value != [] and value is not False


_OWN_LOSS = "{name} computes its own loss; drop the flag"
REFUSALS = (
    Refusal("loss_type", _is_set, "{name} has one loss, the paper's; drop the flag"),
    Refusal("importance_sampling_level", lambda v: v != "token", _OWN_LOSS),
    Refusal("top_entropy_quantile", lambda v: v < 1.0, _OWN_LOSS),
    Refusal("delta", _is_set, "{name} clips with --epsilon and --epsilon_high; drop the flag"),
    Refusal("use_liger_kernel", _is_set, "the fused kernel computes GRPO's loss; drop the flag"),
    Refusal("advantage_reweight", _is_set, "it reweights GRPO's advantages; use --rlhf_type grpo for it"),
    Refusal("sdar_loss_coef", lambda v: v > 0, "it adds to GRPO's loss; use --rlhf_type grpo for it"),
    Refusal("chord_sft_dataset", _is_set, "CHORD adds to GRPO's loss; use --rlhf_type grpo for it"),
    Refusal("teacher_model", _is_set, "distillation from a teacher is --rlhf_type gkd or grpo"),
    Refusal("teacher_model_server", _is_set, "distillation from a teacher is --rlhf_type gkd or grpo"),
    Refusal("rollout_importance_sampling_mode", _is_set, "use --off_policy_correction"),
    Refusal(
        "log_rollout_offpolicy_metrics", _is_set, "{name} logs its own offpolicy/ metrics; drop the flag"
    ),
    Refusal(
        "async_generate",
        _is_set,
        "its queue trains a prompt twice and loses others; use --async_rollout true, which is the default",
    ),
    Refusal(
        "streaming", _is_set, "the sampler needs the number of rows; use a data set that is not streamed"
    ),
    Refusal("packing", _is_set, "a completion is not packed; use --padding_free instead"),
    Refusal(
        "sequence_parallel_size",
        lambda v: v > 1,
        "rows of a sequence-parallel group cannot be told apart yet; use 1",
    ),
    Refusal(
        "temperature",
        lambda v: v <= 0,
        "log-probs are of softmax(logits / temperature), so it must be above 0; use for example 0.9",
    ),
    Refusal("num_iterations", lambda v: v < 1, "a generation batch is trained at least once; use 1 or more"),
    Refusal(
        "max_completion_length",
        lambda v: v is not None and v < 1,
        "a completion has at least one token; use 1 or more",
    ),
    Refusal("num_generations_eval", lambda v: v is not None and v < 1, "use 1 or more"),
    Refusal("beta", lambda v: v is not None and v < 0, "it weighs a KL penalty; use 0 or more"),
    Refusal(
        "epsilon",
        lambda v: not 0 < v <= 1,
        "the ratio is clipped below at 1 - epsilon; use above 0, at most 1",
    ),
    Refusal(
        "epsilon_high",
        lambda v: v is not None and v <= 0,
        "the ratio is clipped above at 1 + it; use above 0",
    ),
)
SUPPORT_FLAGS = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "structured_outputs_regex": None,
}


INEXACT_RESUME = {
    "ignore_data_skip": "the epoch would begin again and its first prompts be trained twice",
    "sync_ref_model": "the mixed reference is not in the checkpoint, and the KL would be measured from another one",
}


def check_conflicts(args: Any, algorithm: Algorithm) -> None:
    """Refuse arguments of a run that cannot work with `algorithm`. Raises ConfigError, one sentence."""
    check_training_conflicts(args, algorithm)
    check_data_files(args)
    if args.rlx_offline is None:
        _check_reward_source(args, algorithm)
    _check_resume(args, algorithm)
    _warn_about_reference(args, algorithm)


def check_training_conflicts(args: Any, algorithm: Algorithm, refusals: Sequence[Refusal] = REFUSALS) -> None:
    """The part that a training configuration has too, with those of `refusals` whose argument it has."""
    for refusal in refusals:
        value = getattr(args, refusal.argument)
        if refusal.applies(value):
            advice = refusal.advice.format(name=algorithm.name)
            raise ConfigError(
                f"--{refusal.argument} {_shown(value)} cannot be used with --rlhf_type {algorithm.name}: {advice}"
            )
    _check_fixed(args, algorithm)
    _check_generations(args, algorithm)
    _warn_about_support(args, algorithm)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _check_fixed(args: Any, algorithm: Algorithm) -> None:
    for name, fixed in algorithm.stock.items():
        value = getattr(args, name)
        untouched = {None, "grpo"} if name == "advantage_estimator" else {None}
        if value not in untouched | {fixed}:
            raise ConfigError(
                f"--{name} {value} contradicts --rlhf_type {algorithm.name}, which is {algorithm.title};"
                f" drop the flag, or use --rlhf_type grpo with it"
            )
    if algorithm.kl_in_reward_is_fixed and args.kl_in_reward not in (None, algorithm.kl_in_reward):
        raise ConfigError(
            f"--kl_in_reward {_shown(args.kl_in_reward)} contradicts --rlhf_type {algorithm.name}, whose KL is a k2"
            " loss; drop the flag, or use --rlhf_type reinforce_pp, whose KL is in the reward"
        )
    if args.gamma != 1.0 and algorithm.name != "reinforce_pp":
        raise ConfigError(
            f"--gamma {args.gamma} has no effect with --rlhf_type {algorithm.name}: only reinforce_pp has returns"
            " to discount; drop the flag"
        )
    if not 0.0 < args.gamma <= 1.0:
        raise ConfigError(f"--gamma {args.gamma} is refused: a discount is above 0 and at most 1")


def _check_generations(args: Any, algorithm: Algorithm) -> None:
    group = args.num_generations
    if group < 1:
        raise ConfigError(
            f"--num_generations {group} is refused: it is the completions of a prompt; use 1 or more"
        )
    if group < algorithm.min_generations:
        raise ConfigError(
            f"--num_generations {group} is refused for --rlhf_type {algorithm.name}: its baseline compares the"
            f" completions of one prompt, so use at least {algorithm.min_generations}; for one completion a prompt"
            " use --rlhf_type reinforce_pp, with or without --group_baseline ema"
        )
    if args.dynamic_sample and group == 1:
        raise ConfigError(
            "--dynamic_sample true cannot be used with --num_generations 1: it samples again where a prompt's"
            " completions got equal rewards, and one completion always does; drop it or use more generations"
        )
    accumulation = args.gradient_accumulation_steps or 1
    per_step = args.per_device_train_batch_size * get_dist_setting()[2]
    batch = args.generation_batch_size or per_step * (args.steps_per_generation or accumulation)
    if batch % group:
        divisors = [n for n in range(algorithm.min_generations, batch + 1) if batch % n == 0]
        remedy = f"make that a multiple of {group}" + (f", or use one of {divisors}" if divisors else "")
        raise ConfigError(
            f"--num_generations {group} does not divide the generation batch of {batch} completions"
            f" (per_device_train_batch_size x ranks x steps_per_generation); {remedy}"
        )
    steps = args.steps_per_generation or max(1, batch // per_step)
    if max(steps, accumulation) % min(steps, accumulation):
        raise ConfigError(
            f"a generation batch of {steps} micro-batches and --gradient_accumulation_steps {accumulation} do not fit"
            " together: an optimizer step would end inside a micro-batch group; make one a multiple of the other"
        )
    check_reuse(args)


def check_reuse(args: Any) -> None:
    """Refuse generation batches of the pipeline of which an optimizer step would train a part.

    Its arithmetic of places and pick-ups is in whole steps.
    """
    if not (args.async_rollout and args.max_staleness):
        return
    accumulation = args.gradient_accumulation_steps or 1
    per_step = args.per_device_train_batch_size * get_dist_setting()[2]
    batch = args.generation_batch_size or per_step * accumulation
    trained = (args.steps_per_generation or max(1, batch // per_step)) * args.num_iterations
    if max(trained, accumulation) % min(trained, accumulation):
        raise ConfigError(
            f"--num_iterations {args.num_iterations} trains a generation batch in {trained} micro-batches, which do not"
            f" fit --gradient_accumulation_steps {accumulation} with the asynchronous pipeline: an optimizer step would"
            " train parts of two batches; make one a multiple of the other, or use --async_rollout false"
        )


def _check_reward_source(args: Any, algorithm: Algorithm) -> None:
    uses_gym = bool(args.use_gym_env if args.use_gym_env is not None else args.gym_env)
    if not (args.reward_funcs or args.reward_model or uses_gym):
        raise ConfigError(
            f"--rlhf_type {algorithm.name} has no reward to learn from: give --reward_funcs, --reward_model or"
            " --use_gym_env (swift-rlx doctor lists the rewards that are installed)"
        )
    if uses_gym and not (args.use_vllm or (args.async_rollout and args.max_staleness > 0)):
        raise ConfigError(
            "--use_gym_env true gives no reward here: environments are run by the asynchronous pipeline or, without it,"
            " by ms-swift's vLLM; leave --async_rollout true, or add --use_vllm true, or give --reward_funcs"
        )
    sources = len(args.reward_funcs) + len(args.reward_model or []) + uses_gym
    if args.reward_weights is not None and len(args.reward_weights) != sources:
        raise ConfigError(
            f"--reward_weights has {len(args.reward_weights)} numbers for {sources} rewards; give one for each of"
            " --reward_funcs, then --reward_model, then the gym reward"
        )
    check_ensemble(args)


def _check_resume(args: Any, algorithm: Algorithm) -> None:
    if not args.resume_from_checkpoint:
        return
    if args.resume_only_model:
        if os.path.isdir(args.resume_from_checkpoint):
            refuse_incomplete(args.resume_from_checkpoint, only_weights=True)
        return
    for flag, why in INEXACT_RESUME.items():
        if getattr(args, flag):
            raise ConfigError(
                f"--{flag} true cannot be used with --resume_from_checkpoint: {why}; drop it, or take only the"
                " weights with --resume_only_model true"
            )
    if not os.path.isdir(args.resume_from_checkpoint):
        raise ConfigError(
            f"--resume_from_checkpoint {args.resume_from_checkpoint} is no folder; give a checkpoint-N of the run"
        )
    refuse_incomplete(args.resume_from_checkpoint)
    path = os.path.join(args.resume_from_checkpoint, "args.json")
    if not os.path.isfile(path):
        return
    with open(path, encoding="utf-8") as file:
        saved = json.load(file)
    trained = saved.get("rlhf_type")
    if ALIASES.get(trained, trained) != algorithm.name:
        raise ConfigError(
            f"{args.resume_from_checkpoint} was trained with rlhf_type {trained} and cannot be resumed with"
            f" --rlhf_type {algorithm.name}; use --rlhf_type {trained}, or --resume_only_model true to take only"
            " the weights"
        )
    if saved.get("ref_adapters") and not args.ref_adapters:
        raise ConfigError(
            f"{args.resume_from_checkpoint} was trained with --ref_adapters {_shown(saved['ref_adapters'])}, and"
            " without it the KL would be measured from another policy; give the same, or --resume_only_model true"
            " to take only the weights"
        )


def _warn_about_reference(args: Any, algorithm: Algorithm) -> None:
    beta = algorithm.beta if args.beta is None else args.beta
    if beta and args.adapters and not args.ref_adapters and args.tuner_type != "full":
        logger.warning(
            f"the KL is measured from the bare base model, not from --adapters {_shown(args.adapters)}, where"
            f" training starts; to measure it from there add --ref_adapters {_shown(args.adapters)}"
        )


def _warn_about_support(args: Any, algorithm: Algorithm) -> None:
    cut = [
        f"--{name} {getattr(args, name)}" for name, off in SUPPORT_FLAGS.items() if getattr(args, name) != off
    ]
    if cut:
        logger.warning(
            f"{' '.join(cut)} samples from a distribution that the training log-probs do not have: the gradient of"
            f" {algorithm.name} is then biased. Only --temperature is replayed exactly."
        )
