"""What an offline objective is: a loss on stored completions, named on the command line.

Two stages, so that the number of ranks and micro-batches changes nothing:

    plan = objective.plan(rows)             once per generation batch, on rows gathered over all ranks
    part = plan.loss(micro_batch)           per micro-batch; the sum of the parts is the loss of the generation batch

Letters: `B` rows of the generation batch, `b` rows of a micro-batch, `T` padded tokens, `V` vocabulary, `F` sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .._checks import compute_dtype


@dataclass(frozen=True, slots=True)
class Needs:
    """What the stored data and the trainer have to give besides log-probs of the current policy."""

    rewards: bool = False
    """A reward per completion."""
    pairwise: bool = False
    """Scores of one or more sources, for comparisons within a prompt."""
    behavior_logprobs: bool = False
    """Stored log-probs of the policy that sampled."""
    logits: bool = False
    """Logits over the whole vocabulary instead of log-probs alone."""
    reference: bool = False
    """Logits of the reference model."""
    target: bool = False
    """Logits of a frozen or slowly following copy of the policy."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """A generation batch of stored completions, gathered over all ranks."""

    group_ids_B: Tensor
    """Integers; equal id = same prompt."""
    tokens_B: Tensor
    """Number of tokens in the loss mask."""
    valid_B: Tensor
    """bool; other rows train nothing and enter no statistic."""
    rewards_B: Tensor | None = None
    """Where the objective needs them; a KL in the reward already subtracted."""
    scores_BF: Tensor | None = None
    """Scores by source on one scale, NaN where a source has none."""
    progress: float = 0.0
    """Share of the training that is done, 0 to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Some rows of the generation batch as the model sees them; `rows_b` are their numbers in it."""

    rows_b: Tensor
    mask_bT: Tensor
    """bool: tokens that train."""
    logprobs_bT: Tensor
    """Of the sampled tokens under the current policy; carries the gradient."""
    behavior_logprobs_bT: Tensor | None = None
    proximal_logprobs_bT: Tensor | None = None
    """Under the weights at the pick-up of the batch; None: the current ones, as in the first pass over a batch."""
    token_ids_bT: Tensor | None = None
    logits_bTV: Tensor | None = None
    """Position t predicts token t; carries the gradient."""
    reference_logits_bTV: Tensor | None = None
    target_logits_bTV: Tensor | None = None


class ObjectiveLoss(NamedTuple):
    """Part of the loss of a generation batch, and of its metrics: both are summed over micro-batches and ranks."""

    loss: Tensor
    metrics: Mapping[str, float]


class Plan(Protocol):
    """What an objective decided about a generation batch."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the whole batch."""

    def loss(self, part: MicroBatch) -> ObjectiveLoss:
        """Of a micro-batch. Raises ValueError for what it needs and does not get."""


class OfflineObjective(Protocol):
    """An objective with its settings, and with what it remembers between batches."""

    @property
    def needs(self) -> Needs:
        """What it has to be given."""

    def plan(self, rows: StoredRows) -> Plan:
        """Statistics over the whole generation batch. Raises ValueError for what it needs and does not get."""

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps; plain numbers, equal on all ranks."""

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from there."""


class Stateless:
    """An objective that remembers nothing."""

    def state(self) -> dict[str, float]:
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        del state


@dataclass(frozen=True, slots=True, eq=False)
class NoPlan:
    """Nothing in the batch to learn from: the loss is 0 and reaches every parameter, so that ranks stay in step."""

    metrics: Mapping[str, float] = field(default_factory=dict)

    def loss(self, part: MicroBatch) -> ObjectiveLoss:
        return ObjectiveLoss(zero_of(part), {})


def zero_of(part: MicroBatch) -> Tensor:
    """A zero with a graph, even where all tokens are masked and whatever stands there."""
    outputs = part.logprobs_bT if part.logits_bTV is None else part.logits_bTV
    dtype = compute_dtype(outputs)
    return outputs.to(dtype).where(torch.zeros((), dtype=torch.bool, device=outputs.device), 0.0).sum()


def required(value: Tensor | None, name: str, objective: str) -> Tensor:
    """The value. Raises ValueError where it is missing."""
    if value is None:
        raise ValueError(f"the offline objective {objective} needs {name}, which this batch does not have")
    return value


def row_sums(logprobs_bT: Tensor, mask_bT: Tensor) -> Tensor:
    """[b] log-prob of each completion: sum over its tokens in the mask."""
    return logprobs_bT.to(compute_dtype(logprobs_bT)).where(mask_bT, 0.0).sum(-1)
