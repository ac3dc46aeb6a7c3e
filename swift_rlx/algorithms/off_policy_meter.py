"""How far the samples are from the policy that trains on them: true, untruncated importance ratios.

With l = log(proximal / behavior) of a token, and L its sum over a completion:

    kl_k1 = mean(-l)    kl_k2 = mean(l^2) / 2    kl_k3 = mean(e^l - 1 - l)      all estimate KL(behavior || proximal)
    second_moment = mean(l^2)                                                   M2
    chi2_token = mean(e^2l) - 1          chi2_seq = mean(e^2L) - 1
    ess_token = (sum e^l)^2 / (n sum e^2l)    ess_seq the same of e^L           effective share of the samples, 0 to 1

Sums of exponentials are kept as logarithms: a ratio of e^10000 is no overflow. A meter's `state` is one tensor that
can be merged with those of other micro-batches and ranks; the result is the same in whatever order.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import require_tensors
from .importance_ratio import ImportanceWeights, behavior_log_ratio
from .kl import k3

BUCKET_EDGES = {"0": 0, "1": 1, "2": 2, "3-4": 4, "5-8": 8, "over_8": None}
"""Buckets of staleness in optimizer steps: name and largest staleness."""
CELLS = ("all", *BUCKET_EDGES, "positive", "negative")
"""What is measured apart: everything, each bucket, advantages above 0 and below 0."""

_SUMS = ("tokens", "rows", "rows_dropped", "weights", "clipped_low", "clipped_high", "l", "l_squared", "k3")
_LOGS = ("token_1", "token_2", "row_1", "row_2")  # log of the sum of e^l, e^2l, e^L, e^2L
_COLUMNS = (*_SUMS, *_LOGS, "largest")
_AT = {name: index for index, name in enumerate(_COLUMNS)}
_LARGEST_EXPONENT = 700.0  # e^709 is the end of float64


@dataclass(frozen=True)
class OffPolicySummary:
    """One cell of a meter. `tokens` and `rows` are counts, `clipped_*` shares of the weights, the rest as above."""

    tokens: int
    rows: int
    rows_dropped: float
    """Share of the rows that a filter dropped."""
    clipped_low: float
    clipped_high: float
    ess_token: float
    ess_seq: float
    kl_k1: float
    kl_k2: float
    kl_k3: float
    second_moment: float
    chi2_token: float
    chi2_seq: float
    max_log_ratio: float
    """Largest |l|."""


class OffPolicyMeter:
    """Accumulates over micro-batches.

    meter = OffPolicyMeter()
    meter.add(proximal_BT, behavior_BT, loss_mask_BT, advantages_BT, staleness_BT=staleness_BT)
    meter.merge(state_of_another_rank)
    meter.summary().ess_token, meter.summary("3-4"), meter.summary("positive")
    """

    def __init__(self) -> None:
        self.state = _empty()
        """[cells, columns] float64 on the CPU; what `merge` of another meter takes."""

    def add(
        self,
        proximal_BT: Tensor,
        behavior_BT: Tensor,
        mask_BT: Tensor,
        advantages_BT: Tensor,
        *,
        sampled_BT: Tensor | None = None,
        staleness_BT: Tensor | None = None,
        weights: ImportanceWeights | None = None,
        kept_B: Tensor | None = None,
    ) -> None:
        """Take in a micro-batch. A row counts where its worst token's staleness and its mean advantage put it.

        Args:
            proximal_BT, behavior_BT: [B, T] log-probs of the sampled tokens.
            mask_BT: [B, T] bool, the tokens that train; a row without one is left out.
            advantages_BT: [B, T]; not read where the mask is False.
            sampled_BT: [B, T] bool, all tokens of a completion, of which L is the sum; None = `mask_BT`.
            staleness_BT: [B, T] integers; None counts as 0.
            weights: what was clipped, as `importance_weights` gave it.
            kept_B: [B] bool, False for rows that a filter dropped.

        Raises:
            ValueError: shapes differ, or a dtype is wrong.
        """
        require_tensors("OffPolicyMeter.add", "BT", mask_BT, advantages_BT=advantages_BT)
        mask, sampled = mask_BT.cpu(), (mask_BT if sampled_BT is None else sampled_BT).cpu()
        proximal, behavior = (t.detach().to("cpu", torch.float64) for t in (proximal_BT, behavior_BT))
        log_ratio = behavior_log_ratio(proximal, behavior, sampled | mask)
        staleness = torch.zeros(mask.shape) if staleness_BT is None else staleness_BT.cpu()
        sign = advantages_BT.detach().cpu().where(mask, 0.0)
        token_cells = _cells(staleness, sign)
        row_cells = _cells(staleness.where(mask, 0).amax(-1), sign.sum(-1))

        rows = mask.any(-1)
        dropped = torch.zeros_like(rows) if kept_B is None else ~kept_B.cpu() & rows
        flat = {"l": log_ratio[mask], "k3": k3(behavior, proximal, mask)[mask]}
        clipped = _clipped(weights, mask, rows)
        added = _empty()
        for cell, in_tokens, in_rows in zip(added, token_cells, row_cells, strict=True):
            chosen_tokens, chosen_rows = in_tokens[mask], in_rows & rows
            _set_tokens(cell, flat["l"][chosen_tokens], flat["k3"][chosen_tokens])
            _set_rows(cell, log_ratio.sum(-1)[chosen_rows])
            cell[_AT["rows_dropped"]] = (dropped & in_rows).sum()
            if weights is not None:
                per_row = weights.weights.ndim == 1
                inside = in_rows[rows] if per_row else chosen_tokens
                cell[_AT["weights"]] = inside.sum()
                cell[_AT["clipped_low"]] = (clipped[0] & inside).sum()
                cell[_AT["clipped_high"]] = (clipped[1] & inside).sum()
        self.merge(added)

    def merge(self, state: Tensor) -> None:
        """Take in the `state` of another meter."""
        sums, logs = slice(0, len(_SUMS)), slice(len(_SUMS), len(_SUMS) + len(_LOGS))
        merged = torch.maximum(self.state, state)
        merged[:, sums] = self.state[:, sums] + state[:, sums]
        merged[:, logs] = torch.logaddexp(self.state[:, logs], state[:, logs])
        self.state = merged

    def summary(self, cell: str = "all") -> OffPolicySummary | None:
        """The numbers of a cell of `CELLS`; None where it has no token."""
        value = dict(zip(_COLUMNS, self.state[CELLS.index(cell)].tolist(), strict=True))
        tokens, rows = value["tokens"], value["rows"]
        if tokens == 0:
            return None
        weights, second_moment = max(value["weights"], 1), value["l_squared"] / tokens
        return OffPolicySummary(
            tokens=int(tokens),
            rows=int(rows),
            rows_dropped=value["rows_dropped"] / max(rows, 1),
            clipped_low=value["clipped_low"] / weights,
            clipped_high=value["clipped_high"] / weights,
            ess_token=_effective_share(value["token_1"], value["token_2"], tokens),
            ess_seq=_effective_share(value["row_1"], value["row_2"], rows),
            kl_k1=-value["l"] / tokens,
            kl_k2=second_moment / 2,
            kl_k3=value["k3"] / tokens,
            second_moment=second_moment,
            chi2_token=_chi2(value["token_2"], tokens),
            chi2_seq=_chi2(value["row_2"], rows),
            max_log_ratio=value["largest"],
        )


def _empty() -> Tensor:
    state = torch.zeros(len(CELLS), len(_COLUMNS), dtype=torch.float64)
    state[:, len(_SUMS) : len(_SUMS) + len(_LOGS)] = -torch.inf
    return state


def _cells(staleness: Tensor, advantage: Tensor) -> list[Tensor]:
    """For each of `CELLS` which of the tokens (or rows) belong to it, in the shape of the arguments."""
    found, above = [torch.ones_like(advantage, dtype=torch.bool)], staleness >= 0
    for edge in BUCKET_EDGES.values():
        inside = above if edge is None else above & (staleness <= edge)
        found.append(inside)
        above = above & ~inside
    return [*found, advantage > 0, advantage < 0]


def _clipped(weights: ImportanceWeights | None, mask: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    if weights is None:
        return ()
    chosen = rows if weights.weights.ndim == 1 else mask
    return weights.clipped_low.cpu()[chosen], weights.clipped_high.cpu()[chosen]


def _set_tokens(cell: Tensor, log_ratios: Tensor, k3_values: Tensor) -> None:
    cell[_AT["tokens"]] = len(log_ratios)
    cell[_AT["l"]] = log_ratios.sum()
    cell[_AT["l_squared"]] = log_ratios.square().sum()
    cell[_AT["k3"]] = k3_values.sum()
    cell[_AT["token_1"]] = log_ratios.logsumexp(0)
    cell[_AT["token_2"]] = (2 * log_ratios).logsumexp(0)
    cell[_AT["largest"]] = log_ratios.abs().max() if len(log_ratios) else 0.0


def _set_rows(cell: Tensor, log_products: Tensor) -> None:
    cell[_AT["rows"]] = len(log_products)
    cell[_AT["row_1"]] = log_products.logsumexp(0)
    cell[_AT["row_2"]] = (2 * log_products).logsumexp(0)


def _effective_share(log_first: float, log_second: float, count: float) -> float:
    return math.exp(2 * log_first - log_second - math.log(count)) if count else 1.0


def _chi2(log_second: float, count: float) -> float:
    """Up to e^700, which JSON and float64 can still hold."""
    return math.expm1(min(log_second - math.log(count), _LARGEST_EXPONENT)) if count else 0.0
