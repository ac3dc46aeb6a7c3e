"""RLOO on stored completions, weighted by how much likelier the policy makes them than the one that sampled.

    A_i = R_i - mean of the other R_j of the prompt        (leave-one-out, on all stored completions of the prompt)
    loss = (1/N) sum_i -w_i A_i log pi(y_i),    w_i = min(prod_t pi(t) / mu(t), cap)     from stored log-probs of mu

The untruncated product is unbiased, also when every completion, or every token, has another behavior policy (several
temperatures, several weight versions), as long as their log-probs are those of the distribution that was sampled from.
Truncation, and weights per token, are biased and have less variance: docs/en/off_policy.md has both in numbers.
Sampling that cuts the support (top-p, top-k) leaves a bias that no weight removes.

Source: Ahmadian et al. 2024, arXiv 2402.14740; truncation: Ionides 2008, Espeholt et al. 2018, arXiv 1802.01561.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..importance import importance_weights
from ..leave_one_out import loo_advantages
from ..sequence_loss import sequence_ppo_loss
from .objective import MicroBatch, Needs, NoPlan, ObjectiveLoss, Plan, Stateless, StoredRows, required


@dataclass(slots=True)
class RLOOWithImportance(Stateless):
    """`--offline_objective rloo_is`. `correction`: a rule of `importance_weights` with its bounds."""

    name: ClassVar[str] = "rloo_is"
    correction: str = "sequence_product"
    cap: float = 2.0
    bounds: tuple[float, float] = (0.5, 5.0)
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2

    @property
    def needs(self) -> Needs:
        return Needs(rewards=True, behavior_logprobs=self.correction != "none")

    def plan(self, rows: StoredRows) -> Plan:
        rewards = required(rows.rewards_B, "rewards", self.name)
        valid = rows.valid_B & (rows.tokens_B > 0)
        advantages = loo_advantages(rewards.double(), rows.group_ids_B, rows.valid_B).where(valid, 0.0)
        count = int(valid.sum())
        if not count:
            return NoPlan()
        metrics = {
            f"{self.name}/advantage_abs": advantages.abs().sum().item() / count,
            f"{self.name}/rows_without_advantage": int((valid & (advantages == 0)).sum()) / count,
        }
        return RLOOPlan(self, advantages / count, valid, metrics)


@dataclass(frozen=True, slots=True, eq=False)
class RLOOPlan:
    """Advantages of a generation batch, divided by the number of completions that train: those in `trains_B`, bool.

    Its parts of `weight_mean` and `clipped_high` sum to means over these completions, an advantage of 0 or not.
    """

    objective: RLOOWithImportance
    coefficients_B: Tensor
    trains_B: Tensor
    metrics: Mapping[str, float]

    def loss(self, part: MicroBatch) -> ObjectiveLoss:
        chosen, logprobs, mask = self.objective, part.logprobs_bT, part.mask_bT
        proximal = logprobs.detach() if part.proximal_logprobs_bT is None else part.proximal_logprobs_bT
        behavior = part.behavior_logprobs_bT
        if chosen.needs.behavior_logprobs:
            behavior = required(behavior, "log-probs of the behavior policy", chosen.name)
        found = importance_weights(
            chosen.correction,
            proximal,
            proximal if behavior is None else behavior,
            mask,
            chosen.cap,
            chosen.bounds,
        )
        rows_b = part.rows_b.to(logprobs.device)
        coefficients = self.coefficients_B.to(logprobs.device)[rows_b]
        per_token = found.weights if found.weights.ndim == 2 else None
        losses_b = sequence_ppo_loss(
            logprobs, proximal, coefficients, mask, chosen.epsilon_low, chosen.epsilon_high, per_token
        ).loss_B
        if per_token is None:
            losses_b = losses_b * found.weights
        share_b = self.trains_B.to(logprobs.device)[rows_b].double() / self.trains_B.sum().item()
        means = {"weight_mean": found.weights, "clipped_high": found.clipped_high}
        metrics = {
            f"{chosen.name}/{name}": (_by_row(values, mask) * share_b).sum().item()
            for name, values in means.items()
        }
        return ObjectiveLoss(losses_b.sum(), metrics)


def _by_row(values: Tensor, mask_bT: Tensor) -> Tensor:
    """[b] values, of [b] or as means over the tokens of [b, T]."""
    return values.double() if values.ndim == 1 else _row_mean(values, mask_bT)


def _row_mean(values_bT: Tensor, mask_bT: Tensor) -> Tensor:
    return values_bT.double().where(mask_bT, 0.0).sum(-1) / mask_bT.sum(-1).clamp(min=1)
