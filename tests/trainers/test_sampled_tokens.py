"""Sampled tokens are found in a conversation by their turns, and nothing else trains."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from swift.rlhf_trainers.utils import build_completion_mask_and_seq_lengths

from swift_rlx.trainers.sampled_tokens import keep_sampled_only, sampled_places

END = 2
#       prompt        turn 1, cut     marker   user     turn 2
IDS = [1, 10, 11, 5, 6, 7, END, 3, 1, 12, 3, 5, 6, END]
MASK = [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1]


def test_the_marker_that_the_template_added_is_not_sampled() -> None:
    assert sampled_places(IDS, MASK, [[5, 6, 7], [5, 6, END]], []) == [3, 4, 5, 11, 12, 13]


def test_tokens_that_the_environment_put_into_a_turn_are_not_sampled() -> None:
    mask = [0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert sampled_places(IDS, mask, [[5, 6, 7], [5, 6, END]], [[1, 0, 1], [1, 1, 1]]) == [3, 5, 11, 12, 13]


def test_a_conversation_that_was_encoded_otherwise_has_no_sampled_tokens() -> None:
    assert sampled_places(IDS, MASK, [[5, 6, 7], [5, 9, END]], []) == []
    assert sampled_places(IDS, MASK, [[10, 11], [5, 6, END]], []) == [], "a prompt is not a turn"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rows_without_padding_keep_the_tokens_that_padded_ones_keep(rows: int) -> None:
    """Against ms-swift's own masks of both layouts."""
    samples, encoded = [], []
    for row in range(rows):
        begin = 3 * row  # prompts and conversations of unequal lengths
        ids, labels = (
            [8] * begin + IDS,
            [-100] * begin + [one if bit else -100 for one, bit in zip(IDS, MASK, strict=True)],
        )
        samples.append(SimpleNamespace(response_token_ids=[[5, 6, 7], [5, 6, END]], response_loss_mask=[]))
        encoded.append((torch.tensor(ids), torch.tensor(labels)))

    padded = micro_batch([padding(ids, 0) for ids, _ in encoded], [padding(one, -100) for _, one in encoded])
    flat_ids = torch.cat([ids for ids, _ in encoded])[None]
    flat_labels = torch.cat([labels for _, labels in encoded])[None]
    places = torch.cat([torch.arange(len(ids)) for ids, _ in encoded])[None]
    flat = micro_batch(flat_ids, flat_labels, rows, position_ids=places)
    keep_sampled_only(samples, [padded])
    keep_sampled_only(samples, [flat], padding_free=True)

    kept, kept_flat = (one["grpo_batch"].completion_mask for one in (padded, flat))
    assert kept.sum(1).tolist() == kept_flat.sum(1).tolist() == [6] * rows
    for row in range(
        rows
    ):  # from the right end, where both have the row's last token or the padding behind it
        assert last_tokens(padded, row) == last_tokens(flat, row) == [5, 6, 7, 5, 6, END]


def padding(row: torch.Tensor, value: int) -> torch.Tensor:
    """On the left, as it is where a batch is generated."""
    return torch.nn.functional.pad(row, (30 - len(row), 0), value=value)


def micro_batch(ids: Any, labels: Any, rows: int = 0, **inputs: Any) -> dict[str, Any]:
    is_flat = rows > 0
    if not is_flat:
        ids, labels, rows = torch.stack(ids), torch.stack(labels), len(ids)
    width = int((labels.shape[-1] - (labels != -100).int().argmax(-1)).max())
    mask, lengths, _ = build_completion_mask_and_seq_lengths(
        labels, rows, padding_free=is_flat, encoded_batch=inputs, logits_to_keep=width
    )
    batch = SimpleNamespace(completion_mask=mask, seq_lengths=lengths)
    return {"grpo_batch": batch, "model_inputs": {"input_ids": ids}}


def last_tokens(entry: dict[str, Any], row: int) -> list[int]:
    """The ids under the mask of a row."""
    mask, ids = entry["grpo_batch"].completion_mask, entry["model_inputs"]["input_ids"]
    width = mask.shape[1]
    if len(ids) == len(mask):
        found = ids[row, -width:]
    else:
        length = entry["grpo_batch"].seq_lengths
        end = int(length[: row + 1].sum())
        found = torch.nn.functional.pad(
            ids[0, -width:][end - int(length[row]) : end], (width - int(length[row]), 0)
        )
    return found[mask[row].bool()].tolist()
