"""Softmax-weighted cross-entropy: imitate the completions of a prompt in proportion to exp(advantage / tau).

    L = (1/Q) sum_q [ -sum_i w_i log pi(y_i) ] + beta * KL(policy || reference),   w = softmax(A / tau) per prompt

over Q prompts. For candidates of the reference it is a self-normalized estimate of cross-entropy to
pi* ~ reference * exp(A / tau), the optimum of the KL-regularized reward. No weight is negative: nothing is pushed down.

Source: Peters and Schaal 2007 (reward-weighted regression); Korbak et al. 2022, arXiv 2206.00761 (the target pi*).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from .._checks import require_tensors
from .objective import Needs, NoPlan, Plan, Stateless, StoredRows, required
from .pairwise import Preferences, by_votes, pairwise_advantages
from .weighted_ce import WeightedCE, num_tokens, per_token


class SoftmaxWeights(NamedTuple):
    """Of a generation batch; float64 on the CPU, without gradient."""

    weights_B: Tensor
    """Sum to 1 within each prompt that trains; 0 in the others."""
    prompts: int
    """That train."""
    skipped: int
    """With equal advantages: nothing distinguishes their completions."""
    max_mean: float
    """Mean over the prompts that train of the largest weight."""


def softmax_weights(
    advantages_B: Tensor,
    group_ids_B: Tensor,
    valid_B: Tensor,
    tau: float = 1.0,
    *,
    log_correction_B: Tensor | None = None,
    skip_uninformative: bool = True,
) -> SoftmaxWeights:
    """softmax(advantage / tau) among the valid completions of each prompt.

    Args:
        advantages_B: [B]; a constant added to those of a prompt changes nothing.
        group_ids_B: [B] integers.
        valid_B: [B] bool.
        tau: above 0; towards 0 only the best completion counts.
        log_correction_B: [B] added to advantage / tau: log pi_ref(y) - log mu(y), where candidates come from another
            policy mu than the reference. Exact, and noisy for long completions.
        skip_uninformative: give weight 0 to prompts with equal advantages, which would all be imitated alike.

    Raises:
        ValueError: shapes or dtypes do not fit, tau is not above 0, or a valid advantage is not finite.
    """
    require_tensors("softmax_weights", "B", valid_B, advantages_B=advantages_B)
    if tau <= 0:
        raise ValueError(f"softmax_weights takes tau above 0, got {tau}")
    valid = valid_B.cpu()
    advantages = advantages_B.detach().to("cpu", torch.float64).where(valid, 0.0)
    if not advantages.isfinite().all():
        raise ValueError("softmax_weights takes finite advantages in valid rows; one is infinite or NaN")
    exponent = advantages / tau
    if log_correction_B is not None:
        exponent = exponent + log_correction_B.detach().to("cpu", torch.float64).where(valid, 0.0)
    ids, group_B = torch.unique(group_ids_B.cpu(), return_inverse=True)
    highest = _of_groups(exponent.where(valid, -torch.inf), group_B, len(ids), "amax")
    spread = _of_groups(advantages.where(valid, -torch.inf), group_B, len(ids), "amax") - _of_groups(
        advantages.where(valid, torch.inf), group_B, len(ids), "amin"
    )
    is_usable = highest.isfinite()
    trains = is_usable & (spread > 0) if skip_uninformative else is_usable
    kept = valid & trains[group_B]
    mass_B = (exponent - highest[group_B]).where(kept, -torch.inf).exp()
    total = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, group_B, mass_B)
    weights_B = (mass_B / total[group_B]).where(kept, 0.0)
    prompts = int(trains.sum())
    largest = _of_groups(weights_B, group_B, len(ids), "amax")[trains]
    return SoftmaxWeights(
        weights_B, prompts, int(is_usable.sum()) - prompts, largest.mean().item() if prompts else 0.0
    )


def with_forward_kl(weights_B: Tensor, group_ids_B: Tensor, beta: float) -> Tensor:
    """[B] w_i + beta / n for the n completions of a prompt that have a weight.

    The same cross-entropy with these weights has beta * KL(reference || policy) in it, estimated on candidates that the
    reference sampled, up to a constant; no reference model is needed.
    """
    ids, group_B = torch.unique(group_ids_B.cpu(), return_inverse=True)
    has_weight = (weights_B > 0).double()
    count = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, group_B, has_weight)
    return weights_B + beta * has_weight / count[group_B].clamp(min=1)


@dataclass(slots=True)
class SoftmaxCE(Stateless):
    """`--offline_objective softmax_ce`: weights from theta - mean(theta) of Bradley-Terry."""

    name: ClassVar[str] = "softmax_ce"
    tau: float = 1.0
    beta: float = 0.03
    """Of the KL over the vocabulary; 0 needs neither logits nor a reference model."""
    length_norm: bool = False
    """Mean instead of sum of a completion's token log-probs."""
    skip_uninformative: bool = True
    preferences: Preferences = by_votes

    @property
    def needs(self) -> Needs:
        return Needs(pairwise=True, logits=self.beta > 0, reference=self.beta > 0)

    def plan(self, rows: StoredRows) -> Plan:
        found, metrics = _weigh(self.name, rows, self.tau, self.skip_uninformative, self.preferences)
        if not found.prompts:
            return NoPlan(metrics)
        weights_B = found.weights_B / found.prompts
        weights_B = per_token(weights_B, rows) if self.length_norm else weights_B
        return WeightedCE(self.name, weights_B, num_tokens(rows), self.beta, metrics, rows.valid_B)


@dataclass(slots=True)
class SoftmaxCEForwardKL(Stateless):
    """`--offline_objective softmax_ce_forward_kl`: the KL as extra weight on the candidates, without a second model."""

    name: ClassVar[str] = "softmax_ce_forward_kl"
    needs: ClassVar[Needs] = Needs(pairwise=True)
    tau: float = 1.0
    beta: float = 0.03
    skip_uninformative: bool = True
    preferences: Preferences = by_votes

    def plan(self, rows: StoredRows) -> Plan:
        found, metrics = _weigh(self.name, rows, self.tau, self.skip_uninformative, self.preferences)
        if not found.prompts:
            return NoPlan(metrics)
        weights_B = with_forward_kl(found.weights_B, rows.group_ids_B, self.beta) / found.prompts
        return WeightedCE(self.name, weights_B, num_tokens(rows), 0.0, metrics)


def _weigh(
    name: str, rows: StoredRows, tau: float, skip_uninformative: bool, preferences: Preferences
) -> tuple[SoftmaxWeights, dict[str, float]]:
    scores = required(rows.scores_BF, "scores of the completions", name)
    compared = pairwise_advantages(scores, rows.group_ids_B, rows.valid_B, preferences=preferences)
    scored = rows.valid_B.cpu() & ~scores.cpu().isnan().all(1)
    found = softmax_weights(
        compared.advantages_B, rows.group_ids_B, scored, tau, skip_uninformative=skip_uninformative
    )
    metrics = {
        f"{name}/prompts": float(found.prompts),
        f"{name}/prompts_skipped": float(found.skipped),
        f"{name}/largest_weight": found.max_mean,
        f"{name}/comparisons": float(compared.comparisons),
        f"{name}/prompts_disconnected": float(compared.disconnected),
    }
    return found, metrics


def _of_groups(values_B: Tensor, group_B: Tensor, groups: int, reduce: str) -> Tensor:
    start = torch.inf if reduce == "amin" else -torch.inf
    return torch.full((groups,), start, dtype=torch.float64).scatter_reduce_(0, group_B, values_B, reduce)
