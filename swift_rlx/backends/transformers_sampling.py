"""Drawing the next token of every row, with the log-probability under exactly the distribution it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopPLogitsWarper,
)

from swift_rlx.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Filters:
    """What makes the distribution of a token out of its logits."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    barred: tuple[int, ...] = ()

    @classmethod
    def of(cls, sampling: SamplingParams) -> Filters:
        """Those of a request; a greedy one has no filter, because the most likely token passes all of them."""
        if sampling.temperature == 0:
            return cls(0.0, 0, 1.0, 0.0, sampling.repetition_penalty, sampling.barred_token_ids)
        return cls(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            barred=sampling.barred_token_ids,
        )


def draw(
    logits: torch.Tensor, ids: torch.Tensor, filters: Filters, uniforms: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row and its log-probability, [B] each.

    `logits` [B, V] and `ids` [B, S], the tokens so far. `uniforms`: B numbers in [0, 1), one a row, at which the
    cumulated distribution is read off; so a row's token depends on nothing of the other rows. Temperature 0 takes
    the most likely token, with its log-probability at temperature 1.
    """
    scores = logits.float()
    if filters.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(filters.repetition_penalty)(ids, scores)
    if filters.barred:
        scores = scores.index_fill(1, torch.tensor(filters.barred, device=scores.device), -torch.inf)
    if filters.temperature == 0:
        tokens = scores.argmax(-1, keepdim=True)
        return tokens[:, 0], scores.log_softmax(-1).gather(1, tokens)[:, 0]
    scores = scores / filters.temperature
    candidates = None
    if (
        0 < filters.top_k < scores.shape[1]
    ):  # the other filters then sort k numbers a row and not the vocabulary
        scores, candidates = scores.topk(filters.top_k)
    if filters.top_p < 1:
        scores = TopPLogitsWarper(filters.top_p)(ids, scores)
    if filters.min_p > 0:
        scores = MinPLogitsWarper(filters.min_p)(ids, scores)
    logprobs = scores.log_softmax(-1)
    cumulated = logprobs.double().exp_().cumsum_(-1)
    where = torch.tensor(uniforms, dtype=torch.float64, device=scores.device)[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, where, right=True).clamp_(max=scores.shape[1] - 1)
    chosen = logprobs.gather(1, tokens)[:, 0]
    return (tokens if candidates is None else candidates.gather(1, tokens))[:, 0], chosen


def draw_rows(
    logits: torch.Tensor, ids: torch.Tensor, filters: Sequence[Filters], uniforms: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `draw`, for rows with filters of their own."""
    kinds = set(filters)
    if len(kinds) == 1:
        return draw(logits, ids, filters[0], uniforms)
    tokens = torch.empty(len(filters), dtype=torch.long, device=logits.device)
    logprobs = torch.empty(len(filters), dtype=torch.float32, device=logits.device)
    for kind in kinds:
        rows = [row for row, other in enumerate(filters) if other == kind]
        tokens[rows], logprobs[rows] = draw(logits[rows], ids[rows], kind, [uniforms[row] for row in rows])
    return tokens, logprobs
