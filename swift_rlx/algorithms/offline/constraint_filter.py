"""A filter in the spirit of BCQ: keep the policy's completions near those of the data, in words, length and names.

BCQ lets the policy choose only among actions that the data makes likely. Here the actions are whole completions, and
three measures stand for their likelihood:

    words      Jensen-Shannon divergence of token frequencies from the data's, in bits
    length     0.8 L < tokens < 1.2 L, L the mean length of the prompt's completions in the data
    entities   more than 60 % of those of the prompt and of its best completion in the data occur

It needs no second model and looks at no value function. As `reject` it takes completions out of the loss (they stay in
its denominator); as `penalty` it lowers their reward.

Source: Fujimoto et al. 2019, arXiv 1812.02900 (BCQ, the idea; the three measures are not from it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swift_rlx.errors import ConfigError

from .entities import overlap
from .unigrams import LengthThresholds, ReferenceTokens, js_distance, js_divergence

CONSTRAINTS = ("words", "length", "entities")
MIN_POOLED_TOKENS = 5000
MIN_OWN_PASS_RATE = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """Strict bounds. `lengths`: relative to the mean of the prompt's completions in the data."""

    lengths: tuple[float, float] = (0.8, 1.2)
    min_overlap: float = 0.6

    def __post_init__(self) -> None:
        low, high = self.lengths
        if not (0 <= low < high and 0 <= self.min_overlap < 1):
            raise ConfigError(
                f"constraint limits with lengths {self.lengths} and min_overlap {self.min_overlap} are refused: lengths"
                " have to rise from at least 0, and the overlap is a share under 1"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A completion of the policy, and what the data has on its prompt."""

    token_ids: Tensor
    reference_tokens: float
    """Mean length of the prompt's completions in the data; of all completions where it has none."""
    entities: frozenset[str] = frozenset()
    wanted_entities: frozenset[str] = frozenset()
    """Of the prompt, and of its best completion in the data; empty = the constraint does not apply."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Of a batch of candidates."""

    passes_BC: Tensor
    """bool [B, 3], a column for each of `CONSTRAINTS`."""

    @property
    def kept_B(self) -> Tensor:
        """bool [B]: all constraints hold. For use as a rejection."""
        return self.passes_BC.all(1)

    def penalties(self, each: float) -> Tensor:
        """[B] float64 to subtract from rewards: `each` per constraint that does not hold."""
        return each * (~self.passes_BC).sum(1).double()

    def pass_rates(self) -> dict[str, float]:
        """By constraint, and of all together, as metrics."""
        shares = dict(zip(CONSTRAINTS, self.passes_BC.double().mean(0).tolist(), strict=True))
        metrics = {f"constraints/{name}_passed": share for name, share in shares.items()}
        return {**metrics, "constraints/passed": self.kept_B.double().mean().item()}


@dataclass(frozen=True, slots=True, eq=False)
class ConstraintFilter:
    """`thresholds` say how far the words of a single completion may be from `reference`, by its length.

    `constraints`: those that are in use, some of `CONSTRAINTS`; the others always hold.
    """

    reference: ReferenceTokens
    thresholds: LengthThresholds
    limits: Limits = Limits()
    constraints: tuple[str, ...] = CONSTRAINTS

    def judge(self, candidates: Sequence[Candidate]) -> Verdict:
        """Each candidate by each constraint."""
        rows = [self._judge(one) for one in candidates]
        return Verdict(torch.tensor(rows, dtype=torch.bool).reshape(-1, len(CONSTRAINTS)))

    def check_own_data(self, candidates: Sequence[Candidate]) -> Verdict:
        """Judge completions of the data itself.

        Raises:
            ConfigError: a constraint rejects almost all of them, and so would reject what imitates them.
        """
        verdict = self.judge(candidates)
        shares = verdict.passes_BC.double().mean(0).tolist()
        for name, share in zip(CONSTRAINTS, shares, strict=True):
            if share < MIN_OWN_PASS_RATE:
                raise ConfigError(
                    f"the constraint on {name} is refused: only {share:.1%} of the stored completions themselves"
                    f" pass it, and at least {MIN_OWN_PASS_RATE:.0%} have to; widen it, or name the others as"
                    ' "constraints" of --constraint_settings'
                )
        return verdict

    def _judge(self, one: Candidate) -> tuple[bool, bool, bool]:
        length, (low, high) = len(one.token_ids), self.limits.lengths
        shared = overlap(set(one.entities), set(one.wanted_entities))
        holds = (
            self.reference.divergence(one.token_ids) <= self.thresholds.of(length),
            low * one.reference_tokens < length < high * one.reference_tokens,
            shared is None or shared > self.limits.min_overlap,
        )
        words, in_length, entities = (
            is_met or name not in self.constraints for name, is_met in zip(CONSTRAINTS, holds, strict=True)
        )
        return words, in_length, entities


@dataclass(frozen=True, slots=True)
class PooledTest:
    """Of the words of many completions together."""

    divergence: float
    """Bits, or the distance where that was asked for."""
    passes: bool | None
    """None: too few tokens to say."""


def pooled_words(
    counts_V: Tensor,
    reference: ReferenceTokens,
    *,
    largest: float = 0.3,
    as_distance: bool = False,
    min_tokens: int = MIN_POOLED_TOKENS,
) -> PooledTest:
    """Whether the policy's recent completions, pooled, have the words of the data.

    Args:
        counts_V: [V] token counts of the completions.
        reference: of the data.
        largest: bound, not included; in bits, or of the distance.
        as_distance: compare the square root of the divergence, as `scipy.spatial.distance.jensenshannon` gives it.
        min_tokens: below which no verdict is given.
    """
    measure = js_distance if as_distance else js_divergence
    value = measure(counts_V, reference.distribution_V)
    return PooledTest(value, value < largest if counts_V.sum() >= min_tokens else None)
