"""Bradley-Terry: one latent score theta per completion, such that P(i is preferred to j) = sigmoid(theta_i - theta_j).

The scores of a prompt minimize

    sum over i, j of wins_ij * softplus(theta_j - theta_i) + ridge * |theta|^2

by Newton's method, all prompts at once. The comparisons say something about differences only; the ridge centers theta
at 0 within each set of completions that comparisons connect, and scores of different sets cannot be compared. Without a
ridge the minimum is finite if and only if the wins connect every completion with every other in both directions (Ford
1957): a completion that won all its comparisons would go to infinity.

Source: Bradley and Terry 1952; Ford 1957; equal to logistic regression on x_i - x_j with C = 1 / (2 ridge) and no
intercept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

RIDGE = 0.1
"""Default; separable comparisons of four completions then give theta of at most 1.75."""
_HALVINGS = 40


class BradleyTerry(NamedTuple):
    """Of P prompts with up to S completions; float64."""

    theta_PS: Tensor
    """Sums to 0 within each connected set; 0 for an invalid completion."""
    components_P: Tensor
    """int64: into how many sets that no comparison connects the valid completions fall; 1 is as it should be."""
    steps: int
    """Newton steps until the slowest prompt converged."""


def bradley_terry(
    wins_PSS: Tensor,
    valid_PS: Tensor,
    ridge: float = RIDGE,
    *,
    tolerance: float = 1e-10,
    max_steps: int = 100,
) -> BradleyTerry:
    """Fit theta for each prompt.

    Args:
        wins_PSS: [P, S, S] from `win_matrix`: finite, at least 0; not read where a completion is invalid.
        valid_PS: [P, S] bool.
        ridge: at least 0.
        tolerance: largest derivative of the objective at the end, per unit of the prompt's largest number of wins
            (or of 1, if that is smaller).
        max_steps: of Newton's method.

    Raises:
        ValueError: shapes or values do not fit, no finite minimum exists (ridge 0), or it did not converge.
    """
    wins, valid = _checked(wins_PSS, valid_PS, ridge)
    components = _num_components(wins, valid)
    if ridge == 0:
        _require_finite_minimum(wins, valid)
    theta = torch.zeros(valid.shape, dtype=torch.float64)
    scale = wins.sum((1, 2)).clamp(min=1.0)
    for step in range(max_steps + 1):
        gradient, hessian = _derivatives(theta, wins, valid, ridge)
        if not ((gradient.abs().amax(1) / scale) > tolerance).any():
            return BradleyTerry(theta, components, step)
        move = torch.linalg.solve(hessian, gradient)
        theta = _descend(theta, move, gradient, wins, ridge)
    bad = int(((gradient.abs().amax(1) / scale) > tolerance).sum())
    raise ValueError(
        f"bradley_terry did not converge within {max_steps} steps for {bad} of {len(valid)} prompts with ridge {ridge};"
        " use a larger ridge, such as 0.1"
    )


def theta_advantages(theta_PS: Tensor, valid_PS: Tensor) -> Tensor:
    """[P, S] theta minus its mean over the valid completions of the prompt; 0 for an invalid one."""
    count = valid_PS.sum(1, keepdim=True).clamp(min=1)
    mean = theta_PS.where(valid_PS, 0.0).sum(1, keepdim=True) / count
    return (theta_PS - mean).where(valid_PS, 0.0)


def _checked(wins_PSS: Tensor, valid_PS: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    if wins_PSS.ndim != 3 or wins_PSS.shape != (*valid_PS.shape, *valid_PS.shape[1:]):
        raise ValueError(
            "bradley_terry takes wins [P, S, S] and valid [P, S], got"
            f" {tuple(wins_PSS.shape)} and {tuple(valid_PS.shape)}"
        )
    if valid_PS.dtype != torch.bool:
        raise ValueError(f"bradley_terry takes a bool tensor as valid_PS, got {valid_PS.dtype}; use .bool()")
    if not 0 <= ridge < torch.inf:
        raise ValueError(f"bradley_terry takes a finite ridge of at least 0, got {ridge}")
    valid = valid_PS.cpu()
    both = valid[:, :, None] & valid[:, None, :]
    wins = wins_PSS.detach().to("cpu", torch.float64).where(both, 0.0)
    if not (wins.isfinite() & (wins >= 0)).all():
        raise ValueError("bradley_terry takes finite wins of at least 0; one is negative, infinite or NaN")
    return wins, valid


def _derivatives(theta: Tensor, wins: Tensor, valid: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Gradient [P, S] and an invertible stand-in [P, S, S] for the Hessian with the same Newton step."""
    prefers_first = (theta[:, :, None] - theta[:, None, :]).sigmoid()
    expected = (wins + wins.mT) * prefers_first
    gradient = (expected - wins).sum(2) + 2 * ridge * theta
    curvature = expected * (1 - prefers_first)
    # The objective does not change along (1, ..., 1), where the gradient is 0 too: a term there moves nothing.
    shift = valid[:, :, None].double() * valid[:, None, :]
    diagonal = curvature.sum(2) + 2 * ridge + (~valid).double()
    return gradient, torch.diag_embed(diagonal) - curvature + shift


def _objective(theta: Tensor, wins: Tensor, ridge: float) -> Tensor:
    losses = wins * softplus(theta[:, None, :] - theta[:, :, None])
    return losses.sum((1, 2)) + ridge * theta.square().sum(1)


def _descend(theta: Tensor, move: Tensor, gradient: Tensor, wins: Tensor, ridge: float) -> Tensor:
    """theta - move, the move halved for a prompt whose objective would not fall enough (Armijo's rule)."""
    before = _objective(theta, wins, ridge)
    noise = 1e-14 * (1 + before.abs())
    slope = (gradient * move).sum(1)
    size = torch.ones_like(before)
    for _ in range(_HALVINGS):
        after = _objective(theta - size[:, None] * move, wins, ridge)
        too_far = after > before - 1e-4 * size * slope + noise
        if not too_far.any():
            break
        size = size.where(~too_far, size / 2)
    return theta - size[:, None] * move


def _reaches(edges: Tensor) -> Tensor:
    """[P, S, S] whether a path leads from i to j; every index reaches itself."""
    reach = edges | torch.eye(edges.shape[1], dtype=torch.bool)
    for _ in range(max(edges.shape[1] - 1, 1).bit_length()):
        reach = (reach.double() @ reach.double()) > 0
    return reach


def _num_components(wins: Tensor, valid: Tensor) -> Tensor:
    reach = _reaches((wins + wins.mT) > 0)
    has_earlier = reach.tril(-1).any(2)
    return (valid & ~has_earlier).sum(1)


def _require_finite_minimum(wins: Tensor, valid: Tensor) -> None:
    both = valid[:, :, None] & valid[:, None, :]
    bad = (both & ~_reaches(wins > 0)).flatten(1).any(1).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"bradley_terry has no finite scores for {len(bad)} prompts, first number {bad[0]}: without a ridge every"
            " completion has to win over every other, if only through others; use a ridge above 0, such as 0.1"
        )
