"""What we build on in ms-swift: names, parameters and fields, checked before they are used.

A release of ms-swift that changes one of them makes our types refuse to start with the name of what is missing;
stock types are not touched. `swift-rlx doctor` prints the same table.
"""

import dataclasses
import importlib
import inspect
import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from swift.utils import get_logger

from swift_rlx.errors import ContractError

logger = get_logger()
TESTED = ("4.5.3", "4.6.0")
OLDEST, NEWEST = (4, 5, 2), (4, 7, 0)  # NEWEST is excluded


@dataclass(frozen=True)
class Clause:
    """`owner.name` exists and takes at least `parameters` (a callable) or has the fields `parameters` (a dataclass)."""

    owner: str
    name: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.name else self.owner

    def breach(self) -> str | None:
        """What is missing, or None."""
        try:
            found = _locate(self.owner)
            found = inspect.getattr_static(found, self.name) if self.name else found
        except (ImportError, AttributeError) as error:
            return f"{self} is missing ({error})"
        have = _names_of(found)
        missing = [name for name in self.parameters if name not in have]
        return f"{self} has no {', '.join(missing)}" if missing else None


_GRPO = "swift.rlhf_trainers.grpo_trainer.GRPOTrainer"
_ARGUMENTS = "swift.arguments.rlhf_args.RLHFArguments"
CONTRACT = (
    Clause("swift.trainers.trainer_factory.TrainerFactory", "get_cls", ("args", "mapping")),
    Clause("swift.trainers.trainer_factory.TrainerFactory", "TRAINING_ARGS_MAPPING"),
    Clause(_ARGUMENTS, "__post_init__", ("self",)),
    Clause(_ARGUMENTS, "_check_teacher", ("self",)),
    Clause(_ARGUMENTS, "_import_external_plugins", ("self",)),
    Clause(_ARGUMENTS, "save_args", ("self", "output_dir")),
    Clause(
        _ARGUMENTS,
        "",
        (
            "rlhf_type",
            "reward_funcs",
            "reward_weights",
            "reward_model",
            "num_generations",
            "advantage_estimator",
            "kl_in_reward",
            "scale_rewards",
            "loss_type",
            "beta",
            "gamma",
            "epsilon",
            "epsilon_high",
            "steps_per_generation",
            "generation_batch_size",
            "resume_only_model",
            "overlong_filter",
        ),
    ),
    Clause("swift.rlhf_trainers.arguments.GRPOConfig", "", ("disable_dropout", "generation_batch_size")),
    Clause(_GRPO, "_prepare_algorithm_params", ("self",)),
    Clause(_GRPO, "_setup_teacher", ("self",)),
    Clause(_GRPO, "_prepare_rewards", ("self", "reward_funcs", "reward_model", "reward_templates")),
    Clause("swift.rewards.rm_plugins", ""),
    Clause("swift.rewards.rm_plugin.DefaultRMPlugin", "__init__", ("self", "model", "template")),
    Clause("swift.get_template", "", ("processor", "template_type", "default_system", "agent_template")),
    Clause(_GRPO, "_prepare_metrics", ("self",)),
    Clause(_GRPO, "_prepare_resample_data_iterator", ("self",)),
    Clause(_GRPO, "_get_train_sampler", ("self", "train_dataset")),
    Clause(_GRPO, "_prepare_inputs", ("self", "inputs")),
    Clause(_GRPO, "_compute_rewards_per_func", ("self", "samples")),
    Clause(_GRPO, "compute_std", ("self", "samples", "rewards_per_func")),
    Clause(_GRPO, "_prepare_batch_inputs", ("self", "samples")),
    Clause(_GRPO, "split_by_mini_batches", ("self", "samples")),
    Clause(_GRPO, "_postprocess_batch", ("self", "samples", "batch_encoded_inputs")),
    Clause(_GRPO, "_compute_loss_and_metrics", ("self", "model", "model_inputs", "grpo_batch")),
    Clause(
        _GRPO,
        "_get_per_token_logps_and_entropies",
        ("self", "model", "model_inputs", "grpo_batch", "compute_entropy"),
    ),
    Clause(
        _GRPO,
        "_get_per_token_logps_and_entropies_single",
        ("self", "model", "model_inputs", "grpo_batch", "compute_entropy"),
    ),
    Clause("swift.rlhf_trainers.grpo_trainer", "selective_log_softmax", ("logits", "index")),
    Clause("swift.rlhf_trainers.grpo_trainer", "entropy_from_logits", ("logits",)),
    Clause(_GRPO, "null_ref_context", ("self",)),
    Clause(_GRPO, "evaluation_loop", ("self", "dataloader")),
    Clause(_GRPO, "get_eval_dataloader", ("self", "eval_dataset")),
    Clause(_GRPO, "prepare_rollout", ("self",)),
    Clause(_GRPO, "_rollout_samples", ("self", "inputs")),
    Clause(_GRPO, "_score_completions", ("self", "samples")),
    Clause(_GRPO, "_log_rollout", ("self", "samples")),
    Clause(_GRPO, "_disable_sp_context", ("self",)),
    Clause(_GRPO, "sample_cls"),
    Clause("swift.rlhf_trainers.utils", "get_gather_if_zero3_context", ("trainer",)),
    Clause("swift.rl_core.data.OnPolicySample", "from_row", ("row",)),
    Clause("swift.rl_core.data.OnPolicySample", "to_infer_request", ("self", "include_extra")),
    Clause("swift.rl_core.data.OnPolicySample", "to_reward_row", ("self",)),
    Clause("swift.rl_core.data.OnPolicySample", "apply_rollout_output", ("self", "rollout_output")),
    Clause("swift.dataset.RowPreprocessor", "rows_to_batched", ("rows",)),
    Clause("swift.template.Template", "decode_generate_ids", ("self", "generate_ids")),
    Clause("swift.rollout.multi_turn.GYMScheduler", "_close_and_remove", ("self", "uuid")),
    Clause("swift.rollout.multi_turn.MultiTurnScheduler", "run", ("self", "infer_request", "request_config")),
    Clause(_GRPO, "_save_checkpoint", ("self",)),
    Clause(_GRPO, "_load_rng_state", ("self",)),
    Clause(
        "swift.rl_core.data.GRPOBatch",
        "",
        (
            "completion_mask",
            "truncated_mask",
            "old_per_token_logps",
            "ref_per_token_logps",
            "advantages",
        ),
    ),
    Clause("swift.rewards.orm", "orms"),
    Clause(
        "trl.trainer.utils.RepeatSampler",
        "__init__",
        ("data_source", "mini_repeat_count", "batch_size", "seed"),
    ),
)


def breaches() -> list[str]:
    """Every clause that the installed ms-swift does not keep."""
    return [breach for clause in CONTRACT if (breach := clause.breach()) is not None]


def version_problem(installed: str) -> str | None:
    """Why this release of ms-swift is outside of what is supported, or None."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:3])
    numbers += (0,) * (3 - len(numbers))
    if OLDEST <= numbers < NEWEST:
        return None
    supported = f">={'.'.join(map(str, OLDEST))},<{NEWEST[0]}.{NEWEST[1]}"
    return f"ms-swift {installed} is outside {supported}, the releases that swift-rlx supports"


def require() -> None:
    """Refuse to go on with an ms-swift that we cannot build on.

    A release outside the supported range is a warning as long as it keeps the contract.

    Raises:
        ContractError: names what is missing.
    """
    installed = version("ms-swift")
    problem = version_problem(installed)
    broken = breaches()
    if broken:
        raise ContractError(
            f"ms-swift {installed} lacks what swift-rlx builds on: {'; '.join(broken)};"
            f" install a tested release: pip install 'ms-swift=={TESTED[-1]}'"
        )
    if problem:
        logger.warning(f"{problem}; it keeps the contract, so the run goes on")


def _locate(path: str) -> Any:
    """The module or attribute at a dotted path."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"no module for {path}")


def _names_of(found: Any) -> set[str]:
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if dataclasses.is_dataclass(found):
        return {field.name for field in dataclasses.fields(found)}
    if inspect.isclass(found) or not callable(found):
        return set()
    found = inspect.unwrap(found)
    return set(inspect.signature(found).parameters)
