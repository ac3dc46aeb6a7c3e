"""Log-probs that a store lacks, computed once under the weights that a run starts with, and kept in the store.

Nobody knows the policy that sampled them; that of the start is taken for it, and the store says so in `logprobs_by`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from swift.rlhf_trainers.utils import collate_to_grpo_micro_batch, encode_sample
from swift.trainers import disable_gradient_checkpointing
from swift.utils import get_logger

from swift_rlx.errors import CheckpointError, ConfigError, StoreError
from swift_rlx.store.manifest import ChangeRefused
from swift_rlx.store.overlays import add_logprobs
from swift_rlx.store.trainable import TrainableGroups
from swift_rlx.trainers.stored_rows import Place, encoded_as_stored, may_train, missing_logprobs, sample_of
from swift_rlx.types import FloatArray

logger = get_logger()


def add_missing_logprobs(trainer: Any, groups: TrainableGroups) -> int:
    """Compute and store them, on all ranks; returns how many completions lacked theirs. Afterwards open the store anew.

    Raises:
        CheckpointError: the run has taken steps before, so that the weights are not those of its start.
        ConfigError: the store cannot be written.
    """
    lacking = list(_lacking(groups, trainer.max_tokens)) if groups.num_without_logprobs() else []
    count = len(lacking)
    if not count:
        return 0
    if trainer.state.global_step:
        raise CheckpointError(
            f"{count} completions of the store {groups.snapshot.url} have no log-probs, and they can only be computed"
            " under the weights that the run started with; give the store that it started with, or start anew"
        )
    found = _compute(trainer, lacking)
    every: dict[int, FloatArray] = dict(gather_object(list(found.items())))
    by = f"{trainer.template.model_info.model_dir.rstrip('/').rsplit('/', 1)[-1]} at the start of a run"
    errors = gather_object([_store(groups, every, by) if trainer.accelerator.is_main_process else None])
    if message := next(filter(None, errors), None):
        raise ConfigError(
            f"--offline_objective rloo_is needs log-probs, {count} completions of {groups.snapshot.url} have none, and"
            f" what is computed cannot be stored: {message}; use --offline_objective awac, which needs none"
        )
    logger.warning(
        f"{count} stored completions had no log-probs: those of the weights at the start were computed and stored,"
        f" marked '{by}'. Importance weights take that for the policy that sampled."
    )
    return count


def _lacking(groups: TrainableGroups, max_tokens: int | None) -> Iterator[tuple[int, Place]]:
    """Row id and completion, of those that train."""
    for group_id in groups.ids.tolist():
        members = groups.group(group_id).group.members
        for row_id, member in zip(groups.row_ids(group_id), members, strict=True):
            place = Place(member)
            if may_train(member, max_tokens) and bool(missing_logprobs([place])):
                yield row_id, place


def _compute(trainer: Any, lacking: Sequence[tuple[int, Place]]) -> dict[int, FloatArray]:
    """This rank's share. All ranks call the model equally often: the last calls may repeat a completion."""
    ranks, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
    each = trainer.args.per_device_train_batch_size
    share = -(-len(lacking) // (ranks * each)) * each
    own = [lacking[at % len(lacking)] for at in range(rank * share, (rank + 1) * share)]
    found: dict[int, FloatArray] = {}
    for begin in range(0, share, each):
        part = own[begin : begin + each]
        logprobs, mask = _logprobs(trainer, [place for _, place in part])
        for at, (row_id, place) in enumerate(part):
            completion = place.member.completion
            sampled = (
                np.ones(completion.num_tokens, bool) if completion.sampled is None else completion.sampled
            )
            whole = np.full(completion.num_tokens, np.nan, np.float32)
            whole[sampled] = logprobs[at][mask[at]].numpy()
            found[row_id] = whole
    return found


@torch.no_grad()
def _logprobs(trainer: Any, places: Sequence[Place]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and mask of the trained tokens, [B, T], on the CPU."""
    samples, template = [sample_of(place, []) for place in places], trainer.template
    with encoded_as_stored(template):
        for sample in samples:
            sample.encoded = encode_sample(sample, template)
    inputs, batch = collate_to_grpo_micro_batch(
        samples, template, device=trainer.accelerator.device, use_logits_to_keep=True
    )
    inputs.pop("labels", None)
    with disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        logprobs, _ = trainer._get_per_token_logps_and_entropies(trainer.model, inputs, batch)
    return logprobs.float().cpu(), batch.completion_mask.bool().cpu()


def _store(groups: TrainableGroups, logprobs: dict[int, FloatArray], by: str) -> str | None:
    """What went wrong, or None."""
    from swift_rlx.store import TrajectoryStore

    store = TrajectoryStore.open(groups.snapshot.url)
    try:
        add_logprobs(store.place, store.log, groups.snapshot, logprobs, by)
    except (StoreError, ChangeRefused, OSError) as error:
        return str(error)
    return None
