"""Where the tokens that the policy sampled are in a conversation as it was encoded for training.

ms-swift labels all that the template puts into an assistant's turn, also the end marker that a turn cut at its length
limit never sampled. Only sampled tokens have a log-prob, and only they may train.
"""

from collections.abc import Sequence
from typing import Any

import torch


def keep_sampled_only(samples: Sequence[Any], encoded: Sequence[dict[str, Any]]) -> None:
    """Take all but sampled tokens out of the completion masks [B, T] of the micro-batches, in place.

    A row whose turns are not found as they were sampled keeps no token.
    """
    at = 0
    for entry in encoded:
        batch = entry["grpo_batch"]
        mask_BT = batch.completion_mask
        ids_BT = entry["model_inputs"]["input_ids"][:, -mask_BT.shape[1] :]
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
