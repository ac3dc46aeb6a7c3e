"""Which tokens of a micro-batch are computed once: each distinct prompt, and every completion behind it.

All tokens that a forward pass needs, N of them, stand one behind the other: the P distinct prompts, then the B
completions. Attention looks at them as two padded blocks, prompts [P, Tp] and completions [B, Tc]; everything else in
a transformer treats a token by itself. The idea is Prefix Grouper's (arXiv 2506.05433).
"""

from dataclasses import dataclass, field

import torch


@dataclass
class PromptLayout:
    """Indices of one micro-batch. M scored tokens: all of the completions.

    `slots` [P * Tp + B * Tc]: which of the N tokens is at a place of the two blocks, -1 where there is none. `places`
    [N] is its inverse. `prompt_of_B`: the number of each row's prompt. `mask` [B, 1, Tc, Tp + Tc] is True where a
    token of a completion attends. `sources` [M]: the token whose logits are of the scored token `targets` [M], which is
    at `cells` [M] of the flat [B, T] result; `lengths` are the scored tokens of each row.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    places: torch.Tensor
    prompt_of_B: torch.Tensor
    mask: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    cells: torch.Tensor
    lengths: list[int]
    num_prompts: int
    shape: tuple[int, int]
    num_attended: int = field(default=0)
    """Attention layers that used it so far."""

    @property
    def num_tokens(self) -> int:
        return self.token_ids.numel()

    def on_grid(self, values_M: torch.Tensor) -> torch.Tensor:
        """Values of the scored tokens as [B, T], 0 elsewhere."""
        grid = values_M.new_zeros(self.shape[0] * self.shape[1])
        return grid.index_copy(0, self.cells, values_M).view(self.shape)


def lay_out(
    input_ids_BL: torch.Tensor, attention_mask_BL: torch.Tensor, completion_mask_BT: torch.Tensor
) -> PromptLayout:
    """The layout of rows whose last T columns hold their completions, padded at either end.

    A completion begins where `completion_mask_BT` is first True and holds all tokens from there on, also those of a
    conversation that do not train. Raises ValueError for a row without a prompt.
    """
    ids, attended = input_ids_BL.cpu(), attention_mask_BL.cpu().bool()
    num_rows, width = completion_mask_BT.shape
    edge = ids.shape[1] - width
    prompts, completions, numbers, cells = [], [], [], []
    known: dict[bytes, int] = {}
    for row, begin in enumerate(_beginnings(completion_mask_BT.cpu().bool(), edge)):
        prompt = ids[row, :begin][attended[row, :begin]]
        if not prompt.numel():
            raise ValueError(f"row {row} has no prompt: its completion begins at the first token")
        number = known.setdefault(prompt.numpy().tobytes(), len(known))
        if number == len(prompts):
            prompts.append(prompt)
        numbers.append(number)
        columns = begin + attended[row, begin:].nonzero()[:, 0]
        completions.append(ids[row, columns])
        cells.append(row * width + columns - edge)
    return _of_pieces(
        prompts, completions, torch.tensor(numbers), torch.cat(cells), (num_rows, width), input_ids_BL.device
    )


def _beginnings(mask_BT: torch.Tensor, edge: int) -> list[int]:
    """The column of [B, L] where each completion begins; behind the last one for an empty completion."""
    begin_B = torch.where(mask_BT.any(1), mask_BT.int().argmax(1), mask_BT.shape[1])
    return [edge + begin for begin in begin_B.tolist()]


def _of_pieces(
    prompts: list[torch.Tensor],
    completions: list[torch.Tensor],
    prompt_of_B: torch.Tensor,
    cells: torch.Tensor,
    shape: tuple[int, int],
    device: torch.device,
) -> PromptLayout:
    lengths = torch.tensor([len(piece) for piece in (*prompts, *completions)])
    starts = lengths.cumsum(0) - lengths
    of_prompts, of_completions = slice(0, len(prompts)), slice(len(prompts), None)
    prompt_slots = _slots(starts[of_prompts], lengths[of_prompts])
    slots_BT = _slots(starts[of_completions], lengths[of_completions])
    prompt_lengths_B = lengths[prompt_of_B]
    first = torch.cat([torch.zeros(len(prompts), dtype=torch.long), prompt_lengths_B])
    token_ids = torch.cat([*prompts, *completions])
    slots = torch.cat([prompt_slots.flatten(), slots_BT.flatten()])
    is_taken = slots >= 0
    places = torch.empty_like(token_ids)
    places[slots[is_taken]] = is_taken.nonzero()[:, 0]
    before_BT = slots_BT - 1
    before_BT[:, 0] = starts[prompt_of_B] + prompt_lengths_B - 1
    is_scored = slots_BT >= 0
    return PromptLayout(
        token_ids=token_ids.to(device),
        position_ids=(torch.arange(len(token_ids)) + (first - starts).repeat_interleave(lengths)).to(device),
        slots=slots.to(device),
        places=places.to(device),
        prompt_of_B=prompt_of_B.to(device),
        mask=_mask(prompt_lengths_B, prompt_slots.shape[1], slots_BT.shape[1]).to(device),
        sources=before_BT[is_scored].to(device),
        targets=token_ids[slots_BT[is_scored]].to(device),
        cells=cells.to(device),
        lengths=lengths[of_completions].tolist(),
        num_prompts=len(prompts),
        shape=shape,
    )


def _slots(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[rows, width]: the numbers of the tokens of each piece, the right padded with -1; at least one column."""
    offsets = torch.arange(max(1, int(lengths.max())))
    return torch.where(offsets < lengths[:, None], starts[:, None] + offsets, -1)


def _mask(prompt_lengths_B: torch.Tensor, num_prompt: int, num_completion: int) -> torch.Tensor:
    """A token of a completion attends to its prompt, and to its completion up to itself."""
    on_prompt = torch.arange(num_prompt) < prompt_lengths_B[:, None, None]
    on_completion = torch.ones(num_completion, num_completion, dtype=torch.bool).tril()
    rows = len(prompt_lengths_B)
    parts = [
        on_prompt.expand(rows, num_completion, num_prompt),
        on_completion.expand(rows, num_completion, num_completion),
    ]
    return torch.cat(parts, 2)[:, None]
