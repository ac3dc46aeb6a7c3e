"""Conservative Q-learning with the logits as Q values: a soft Bellman error, and a penalty on what is not in the data.

With Q = q_scale * logits the policy is softmax(Q / q_scale), and the value of a state V = q_scale * logsumexp(logits).
Token t of a completion with reward R is regressed on y_t = gamma * V_{t+1} from a frozen copy, the last one on R:

    L = mean over tokens of  (Q_t[a_t] - y_t)^2 / 2  +  alpha * (V_t - Q_t[a_t])

The penalty is q_scale times the token cross-entropy: without the Bellman error this is imitation. alpha stands before
the difference; before V alone, as sometimes printed, the loss would have no lower bound for alpha under 1.
Experimental: logits of a pretrained model are no calibrated returns.

Source: Kumar et al. 2020, arXiv 2006.04779, equation 4 (CQL(H)); Haarnoja et al. 2017, arXiv 1702.08165 (soft values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .._checks import compute_dtype
from .objective import (
    MicroBatch,
    Needs,
    NoPlan,
    ObjectiveLoss,
    Plan,
    Stateless,
    StoredRows,
    required,
    zero_of,
)
from .weighted_ce import num_tokens

Schedule = Callable[[float], float]
"""From the share of the training that is done to alpha."""


@dataclass(frozen=True, slots=True)
class LinearAlpha:
    """From `start` to `end` in equal steps up to the share `until` of the training, constant after."""

    start: float = 1.0
    end: float = 0.1
    until: float = 1.0

    def __call__(self, progress: float) -> float:
        done = _done(progress, self.until)
        return (1 - done) * self.start + done * self.end


@dataclass(frozen=True, slots=True)
class ExponentialAlpha:
    """The same by equal factors."""

    start: float = 1.0
    end: float = 0.1
    until: float = 1.0

    def __call__(self, progress: float) -> float:
        return float(self.start * (self.end / self.start) ** _done(progress, self.until))


def conservative_penalty(logits_NV: Tensor, token_ids_N: Tensor, q_scale: float = 1.0) -> Tensor:
    """[N] V - Q[a] = q_scale * (logsumexp(logits) - logits[a]): the cross-entropy of the token, times the scale."""
    return q_scale * cross_entropy(logits_NV.to(compute_dtype(logits_NV)), token_ids_N, reduction="none")


def soft_targets(
    target_logits_BTV: Tensor, rewards_B: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, q_scale: float = 1.0
) -> Tensor:
    """[B, T] gamma * V of the next token in the mask, the reward for the last one, 0 elsewhere; without gradient.

    What lies between two tokens in the mask (tool output) neither ends the episode nor discounts.

    Args:
        target_logits_BTV: of a frozen copy; position t predicts token t.
        rewards_B: [B] finite.
        mask_BT: [B, T] bool.
        gamma: discount per token in the mask.
        q_scale: above 0.
    """
    dtype = compute_dtype(target_logits_BTV)
    values_N = q_scale * target_logits_BTV.detach()[mask_BT].to(dtype).logsumexp(-1)
    values_BT = torch.zeros(mask_BT.shape, dtype=dtype, device=mask_BT.device).masked_scatter(
        mask_BT, values_N
    )
    width = mask_BT.shape[1]
    positions = torch.arange(width, device=mask_BT.device).where(mask_BT, width)
    this_or_next = positions.flip(-1).cummin(-1).values.flip(-1)
    following = torch.nn.functional.pad(this_or_next[:, 1:], (0, 1), value=width)
    is_last = mask_BT & (following == width)
    next_values = torch.nn.functional.pad(values_BT, (0, 1)).gather(1, following)
    targets = (gamma * next_values).where(~is_last, rewards_B.detach().to(values_BT)[:, None])
    return targets.where(mask_BT, 0.0)


@dataclass(slots=True)
class CQL(Stateless):
    """`--offline_objective cql`."""

    name: ClassVar[str] = "cql"
    needs: ClassVar[Needs] = Needs(rewards=True, logits=True, target=True)
    alpha: Schedule = LinearAlpha()
    gamma: float = 1.0
    q_scale: float = 1.0
    td_from: float = 0.1
    """Share of the training before which only the penalty trains, so that logits come near the data first."""

    def __post_init__(self) -> None:
        if not (self.q_scale > 0 and 0 <= self.gamma <= 1):
            raise ValueError(
                f"CQL takes q_scale above 0 and gamma from 0 to 1, got {self.q_scale} and {self.gamma}"
            )

    def plan(self, rows: StoredRows) -> Plan:
        rewards = required(rows.rewards_B, "rewards", self.name)
        tokens = num_tokens(rows)
        if not tokens:
            return NoPlan()
        has_td = rows.progress >= self.td_from
        alpha = self.alpha(rows.progress)
        metrics = {"cql/alpha": alpha, "cql/td": float(has_td)}
        return CQLPlan(rewards, rows.valid_B, tokens, alpha, float(has_td), self.gamma, self.q_scale, metrics)


@dataclass(frozen=True, slots=True, eq=False)
class CQLPlan:
    """Rewards and coefficients of a generation batch of `tokens` tokens in the loss mask."""

    rewards_B: Tensor
    valid_B: Tensor
    tokens: int
    alpha: float
    td_weight: float
    gamma: float
    q_scale: float
    metrics: Mapping[str, float]

    def loss(self, part: MicroBatch) -> ObjectiveLoss:
        logits = required(part.logits_bTV, "logits", "cql")
        token_ids = required(part.token_ids_bT, "token ids", "cql")
        target_logits = required(part.target_logits_bTV, "logits of the target copy", "cql")
        device = part.mask_bT.device
        mask = part.mask_bT & self.valid_B.to(device)[part.rows_b.to(device), None]
        chosen_logits, chosen_ids = logits[mask], token_ids[mask]
        penalty = conservative_penalty(chosen_logits, chosen_ids, self.q_scale).sum() / self.tokens
        q_values = chosen_logits.to(compute_dtype(logits)).gather(1, chosen_ids[:, None])[:, 0] * self.q_scale
        rewards = self.rewards_B.to(device)[part.rows_b.to(device)]
        targets = soft_targets(target_logits, rewards, mask, gamma=self.gamma, q_scale=self.q_scale)
        error = (q_values - targets[mask]).square().sum() / (2 * self.tokens)
        loss = self.td_weight * error + self.alpha * penalty + zero_of(part)
        q_mean = q_values.detach().sum().item() / self.tokens
        return ObjectiveLoss(
            loss, {"cql/penalty": penalty.item(), "cql/bellman_error": error.item(), "cql/q_mean": q_mean}
        )


def _done(progress: float, until: float) -> float:
    return min(max(progress / until, 0.0), 1.0)
