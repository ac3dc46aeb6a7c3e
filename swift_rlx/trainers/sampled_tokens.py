"""Where the tokens that the policy sampled are in a conversation as it was encoded for training.

ms-swift labels all that the template puts into an assistant's turn, also the end marker that a turn cut at its length
limit never sampled. Only sampled tokens have a log-prob, and only they may train.
"""

from collections.abc import Sequence
from typing import Any

import torch


def keep_sampled_only(
    samples: Sequence[Any], encoded: Sequence[dict[str, Any]], padding_free: bool = False
) -> None:
    """Take all but sampled tokens out of the completion masks [B, T] of the micro-batches, in place.

    A row whose turns are not found as they were sampled keeps no token. `padding_free`: the rows of a micro-batch are
    one behind the other.
    """
    at = 0
    for entry in encoded:
        batch = entry["grpo_batch"]
        mask_BT = batch.completion_mask
        ids_BT = entry["model_inputs"]["input_ids"][:, -mask_BT.shape[1] :]
        if padding_free:
            ids_BT = _one_below_the_other(ids_BT, batch.seq_lengths)
        kept = torch.zeros_like(mask_BT)
        for row in range(mask_BT.shape[0]):
            sample = samples[at]
            places = sampled_places(
                ids_BT[row].tolist(),
                mask_BT[row].tolist(),
                sample.response_token_ids,
                sample.response_loss_mask,
            )
            kept[row, places] = 1
            at += 1
        batch.completion_mask = kept


def _one_below_the_other(ids_1T: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """[B, T]: rows of these lengths out of [1, T], each at the right end, where ms-swift puts their log-probs."""
    width = ids_1T.shape[1]
    rows = ids_1T[0].split(lengths_B.tolist())
    return torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])


def sampled_places(
    ids: list[int], mask: list[bool], turns: list[list[int]], turn_masks: list[list[int]]
) -> list[int]:
    """Indices into `ids` of the sampled tokens of all turns, in order; none unless every turn is found.

    `turn_masks` say 0 for tokens of a turn that were put there; empty: all were sampled.
    """
    places: list[int] = []
    begin = 0
    for number, turn in enumerate(turns):
        bits = turn_masks[number] if turn_masks else [1] * len(turn)
        start = next(
            (
                at
                for at in range(begin, len(ids) - len(turn) + 1)
                if ids[at : at + len(turn)] == turn
                and all(bool(mask[at + offset]) == bool(bit) for offset, bit in enumerate(bits))
            ),
            None,
        )
        if start is None:
            return []
        places += [start + offset for offset, bit in enumerate(bits) if bit]
        begin = start + len(turn)
    return places
