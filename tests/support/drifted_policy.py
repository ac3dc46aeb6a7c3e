"""A policy of 81 completions and others that drifted from it: expected gradients of every weight as finite sums."""

from collections.abc import Callable

import torch
from torch import Tensor

from swift_rlx.algorithms import behavior_log_ratio, importance_weights

V, T = 3, 4
N = V**T
F64 = torch.float64
DELTAS = (0.05, 0.2, 0.5, 1.0)
MASK = torch.ones(N, T, dtype=torch.bool)
TOKENS = torch.cartesian_prod(*[torch.arange(V)] * T)
"""[81, 4], row i is the completion that spells i in base 3."""

KNOWN_BIAS = {
    "none": [0.068, 0.286, 0.788, 1.747],
    "token_truncate": [0.052, 0.212, 0.538, 1.015],
    "token_mask": [0.052, 0.212, 0.552, 1.122],
    "two_sided_mask": [0.052, 0.212, 0.551, 1.138],
    "prefix_product": [0.038, 0.152, 0.378, 0.656],
    "sequence_product": [0.0, 0.0, 0.079, 0.420],
    "geometric mean": [0.051, 0.204, 0.504, 0.939],
    "sequence mask": [0.0, 0.0, 0.382, 0.762],
    "PPO clip": [0.052, 0.282, 1.157, 1.682],
}
"""Relative error of the expected gradient of the default policy under each rule, by `DELTAS`."""

Weights = Callable[[Tensor, Tensor], Tensor]
"""From the log-probs [81, 4] of policy and behavior to weights [81] or [81, 4]."""


class DriftedPolicy:
    """One logit vector for each prefix; the policy that samples has `delta` times a random direction added.

    The estimator is RLOO's in expectation: advantage R_i - E R under the policy that samples, weights without
    gradient, the token sum of weighted log-prob gradients.
    """

    def __init__(self, seed: int = 3) -> None:
        draw = torch.Generator().manual_seed(seed)

        def logits(scale: float) -> list[Tensor]:
            return [scale * torch.randn(V**t, V, generator=draw, dtype=F64) for t in range(T)]

        self.logits = [table.requires_grad_() for table in logits(0.7)]
        self.drift = logits(1.0)
        self.rewards = torch.randn(N, generator=draw, dtype=F64)

    def logprobs(self) -> Tensor:
        """[81, 4], with gradient."""
        return _token_logprobs(self.logits)

    def drifted(self, delta: float) -> Tensor:
        """[81, 4] log-probs of a policy at distance `delta`."""
        moved = [table.detach() + delta * step for table, step in zip(self.logits, self.drift, strict=True)]
        return _token_logprobs(moved)

    def gradient(self, scalar: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(scalar, self.logits)])

    def true_gradient(self) -> Tensor:
        return self.gradient((self.logprobs().sum(1).exp() * self.rewards).sum())

    def expected_gradient(self, behavior: Tensor, weights: Weights) -> Tensor:
        """Of samples of `behavior` [81, 4] under `weights`."""
        chance = behavior.sum(1).exp()
        return self.weighted_gradient(chance, weights(self.logprobs().detach(), behavior))

    def weighted_gradient(self, chance: Tensor, weights: Tensor) -> Tensor:
        """sum over completions of chance * A * sum_t w_t grad log-prob_t; weights [81] or [81, 4]."""
        advantages = self.rewards - (chance * self.rewards).sum()
        per_token = weights if weights.ndim == 2 else weights[:, None]
        return self.gradient((chance * advantages * (per_token * self.logprobs()).sum(1)).sum())

    def relative_error(self, behavior: Tensor, weights: Weights) -> float:
        return relative_error(self.expected_gradient(behavior, weights), self.true_gradient())


def _token_logprobs(logits: list[Tensor]) -> Tensor:
    columns, prefix = [], torch.zeros(N, dtype=torch.long)
    for t, table in enumerate(logits):
        columns.append(table.log_softmax(-1)[prefix, TOKENS[:, t]])
        prefix = prefix * V + TOKENS[:, t]
    return torch.stack(columns, 1)


def relative_error(got: Tensor, true: Tensor) -> float:
    return ((got - true).norm() / true.norm()).item()


def ours(mode: str, cap: float = 2.0) -> Weights:
    return lambda policy, behavior: importance_weights(mode, policy, behavior, MASK, cap).weights


def geometric_mean(policy: Tensor, behavior: Tensor) -> Tensor:
    return behavior_log_ratio(policy, behavior, MASK).mean(1).exp()


def sequence_mask(policy: Tensor, behavior: Tensor) -> Tensor:
    product = behavior_log_ratio(policy, behavior, MASK).sum(1).exp()
    return product.where(product <= 2, 0.0)


def rule_table(policy: DriftedPolicy) -> dict[str, list[float]]:
    """Relative error of the expected gradient for each rule, by `DELTAS`. PPO's clip depends on the advantage."""

    def ppo_clip(behavior: Tensor) -> float:
        ratio = behavior_log_ratio(policy.logprobs().detach(), behavior, MASK).exp()
        chance = behavior.sum(1).exp()
        positive = (policy.rewards > (chance * policy.rewards).sum())[:, None]
        has_gradient = torch.where(positive, ratio <= 1.2, ratio >= 0.8)
        got = policy.weighted_gradient(chance, ratio.where(has_gradient, 0.0))
        return relative_error(got, policy.true_gradient())

    rules = {
        "none": ours("none"),
        "token_truncate": ours("token_truncate"),
        "token_mask": ours("token_mask"),
        "two_sided_mask": ours("two_sided_mask"),
        "prefix_product": ours("prefix_product"),
        "sequence_product": ours("sequence_product"),
        "product": ours("sequence_product", 1e300),
        "geometric mean": geometric_mean,
        "sequence mask": sequence_mask,
    }
    table = {
        name: [policy.relative_error(policy.drifted(delta), rule) for delta in DELTAS]
        for name, rule in rules.items()
    }
    return table | {"PPO clip": [ppo_clip(policy.drifted(delta)) for delta in DELTAS]}
