"""What is checked and said once, before the first step."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from swift.template import TemplateInputs
from swift.utils import get_logger, remove_response

from swift_rlx.errors import ConfigError
from swift_rlx.integration.algorithm_table import resolve
from swift_rlx.rewards import missing_columns, reserved_columns

logger = get_logger()
MAX_PROMPTS_SHOWN = 5


def fit_prompts(dataset: Any, template: Any, model: Any, args: Any) -> Any:
    """`dataset` without the prompts that leave no room for a completion.

    With `--truncation_strategy delete` they are dropped and counted; else they are refused, because cutting off the
    beginning of a prompt (ms-swift's default) trains on a question that nobody asked.

    Raises:
        ConfigError: shows the prompts and their lengths (ms-swift has shuffled the rows, their numbers say nothing).
    """
    if template.model_meta.is_multimodal:
        return dataset  # what an image costs is only known after it was loaded
    limit, remedy = _prompt_limit(template, model, args)
    too_long = {} if limit is None else dict(_rows_longer_than(limit, dataset, template))
    if not too_long:
        return dataset
    shown = _shown(dataset, too_long)
    if template.truncation_strategy != "raise":
        raise ConfigError(
            f"{len(too_long)} of {len(dataset)} prompts are longer than the {limit} tokens that there are for a prompt:"
            f" {shown}; {remedy}, or drop them with --truncation_strategy delete"
        )
    logger.warning(f"dropped {len(too_long)} of {len(dataset)} prompts longer than {limit} tokens: {shown}")
    return dataset.select([row for row in range(len(dataset)) if row not in too_long])


def _shown(dataset: Any, too_long: dict[int, int]) -> str:
    texts = []
    for row, tokens in list(too_long.items())[:MAX_PROMPTS_SHOWN]:
        asked = [turn["content"] for turn in dataset[row]["messages"] if turn["role"] != "assistant"]
        texts.append(f"{str(asked[-1])[:40]!r}... ({tokens} tokens)")
    if len(too_long) > len(texts):
        texts.append(f"{len(too_long) - len(texts)} more")
    return ", ".join(texts)


def _prompt_limit(template: Any, model: Any, args: Any) -> tuple[int | None, str]:
    """The longest prompt, None for any, and what to change to allow longer ones."""
    window = model.model_info.max_model_len
    room = window - args.max_completion_length if window else None
    if room is not None and room <= 0:
        raise ConfigError(
            f"--max_completion_length {args.max_completion_length} leaves no room for a prompt in the model's"
            f" {window} tokens; lower it"
        )
    if template.max_length and (room is None or template.max_length <= room):
        return template.max_length, f"raise --max_length {template.max_length}"
    return (
        room,
        f"lower --max_completion_length {args.max_completion_length} (the model takes {window} tokens in all)",
    )


def longest_prompt(dataset: Any, template: Any) -> int | None:
    """No prompt has more tokens. None: not known, where rows describe tools, which a template words as it likes."""
    if "tools" in dataset.column_names:
        return None
    most = max(_num_bytes(_question(example)) for example in dataset) + template_overhead(template)
    return most if template.max_length is None else min(most, template.max_length)


def _question(example: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = deepcopy(example["messages"])
    remove_response(messages)
    return messages


def _rows_longer_than(limit: int, dataset: Any, template: Any) -> Iterator[tuple[int, int]]:
    with _without_truncation(template):
        for row, example in enumerate(dataset):
            messages = _question(example)
            # A token is at least one byte and a template adds little: most prompts are short without tokenizing.
            if _num_bytes(messages) + template_overhead(template) <= limit:
                continue
            encoded = template.encode(TemplateInputs.from_dict({"messages": messages}))
            if len(encoded["input_ids"]) > limit:
                yield row, len(encoded["input_ids"])


def _num_bytes(messages: list[dict[str, Any]]) -> int:
    return sum(len(str(message["content"]).encode()) + 64 for message in messages)


def template_overhead(template: Any) -> int:
    """An upper bound, in bytes, of what the template adds besides the messages: its system prompt and slack."""
    return len(str(template.template_meta.default_system or "").encode()) + 256


@contextmanager
def _without_truncation(template: Any) -> Iterator[None]:
    kept, template.max_length = template.max_length, None
    try:
        yield
    finally:
        template.max_length = kept


def check_rows(dataset: Any, args: Any) -> None:
    """Refuse a data set that does not fill one generation batch: it would train nothing and report success."""
    needed = args.generation_batch_size // args.num_generations
    if len(dataset) < needed:
        raise ConfigError(
            f"the data set has {len(dataset)} prompts, and one generation batch takes {needed}"
            f" ({args.generation_batch_size} completions / --num_generations {args.num_generations}): nothing would"
            " be trained; add prompts or lower --per_device_train_batch_size, --gradient_accumulation_steps or"
            " --steps_per_generation"
        )


def check_columns(dataset: Any, rewards: list[Any]) -> None:
    """Refuse a reward whose columns the data set lacks, and columns that would break training."""
    reserved = reserved_columns(dataset.column_names)
    specs, ends_answered = [reward.spec for reward in rewards], _has_response(dataset)
    problems = [*reserved.errors, missing_columns(specs, dataset.column_names, ends_answered)]
    for problem in filter(None, problems):
        raise ConfigError(problem)
    for warning in reserved.warnings:
        logger.warning(warning)


def _has_response(dataset: Any) -> bool:
    """Whether the first row has an answer of the assistant, which ms-swift has made of a column or found there."""
    messages = dataset[0].get("messages") or [{}] if len(dataset) else [{}]
    return messages[-1].get("role") == "assistant"


def log_plan(dataset: Any, args: Any, group_baseline: str) -> None:
    """Say what will be trained: the algorithm with its defaults, and the arithmetic of prompts and steps."""
    algorithm = resolve(args.rlx_type)
    where = (
        "no KL"
        if args.beta == 0
        else f"KL {args.beta:g} as {'k1 in the reward' if args.kl_in_reward else 'k2 loss'}"
    )
    clip = "no reward clip" if args.reward_clip is None else f"reward clip +-{args.reward_clip:g}"
    logger.info(
        f"swift-rlx: {algorithm.title}: baseline {group_baseline}, {where}, {clip}, ratio clip"
        f" -{args.epsilon:g}/+{args.epsilon_high if args.epsilon_high is not None else args.epsilon:g}, dropout off"
    )
    group = args.num_generations
    per_batch = args.generation_batch_size // group
    batches = len(dataset) // per_batch
    rows_per_step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    reuse = args.num_iterations
    logger.info(
        f"swift-rlx: {len(dataset)} prompts x {group} completions; a generation batch is {per_batch} prompts ="
        f" {args.generation_batch_size} completions, trained {reuse} time(s) in optimizer steps of {rows_per_step}"
        f" completions; {batches} generation batches an epoch, {len(dataset) - batches * per_batch} prompts of the"
        " last incomplete one are left out of each epoch"
    )


def log_reward_models(models: list[Any], templates: list[Any], device: Any) -> None:
    """Say what each reward model scores with, and the memory that it takes beside the policy."""
    for model, template in zip(models, templates, strict=True):
        num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        logger.info(
            f"swift-rlx: the reward model {model.config._name_or_path} scores by its own tokenizer of"
            f" {len(template.tokenizer)} tokens and the template {template.template_meta.template_type}; its weights"
            f" take {num_bytes / 1e9:.3g} GB on {device}, beside the policy's; on another machine:"
            " swift-rlx reward serve --reward NAME=model:PATH"
        )
