"""Records that cross the borders between parts: prompts, completions, trajectories and their groups.

Frozen, without behavior beyond derived numbers. Arrays are numpy, one entry per completion token, in the order
of sampling; `T` is the number of tokens of a completion. Times are seconds of the run's clock (`clock.py`).

    Prompt -> K requests -> Chunk, Chunk, ... -> Completion -> Trajectory (and reward) -> TrajectoryGroup (K of them)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class FinishReason(enum.Enum):
    """Why the engine ended an answer."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Fate(enum.Enum):
    """What became of a generated token; every one has exactly one fate at a time."""

    IN_FLIGHT = "in flight"
    """Its group has not ended yet."""
    TRAINED = "trained"
    OVER_AGE = "over age"
    """Older than the staleness bound when it could have been trained."""
    CUT = "cut"
    """Of an answer that we ended ourselves: weights were published by `abort`, or the run ended."""
    FAILED = "failed"
    """Of a failed attempt, an unscored answer, or a group that was dropped because of failures."""
    REJECTED = "rejected"
    """Of a group that the scorer turned away, as dynamic sampling does with one without spread."""
    STORED = "stored"
    """Kept for later training from stored trajectories."""


class DropReason(enum.Enum):
    """Why a group ended without training."""

    TOO_FEW_ANSWERS = "too few answers"
    TOO_FEW_SCORED = "too few scored"
    NO_SPREAD = "no spread"
    """All of its rewards are the same, and the scorer rejects such groups."""


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """Published weights: the number of starts of the run before this one, and its optimizer step."""

    incarnation: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.step}"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion. `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch them off.

    `temperature` 0 takes the most likely token. `seed` differs per completion. `stop_token_ids` end an answer and
    belong to it; `stop` strings do so too. `barred_token_ids` are never sampled.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    barred_token_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One row of the data: its place in the order of the run, its token ids and its other columns."""

    index: int
    token_ids: IntArray
    epoch: int = 0
    columns: Mapping[str, object] = field(default_factory=dict)
    model_inputs: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    """Encoded images and the like, that the model's first forward takes beside the token ids; by argument name."""
    expected_tokens: int | None = None
    """Length of its answers in earlier epochs, if known."""

    @property
    def key(self) -> tuple[int, int]:
        """What identifies the prompt within a run."""
        return (self.epoch, self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One answer as the engine made it. All arrays are [T].

    `logprobs`: log-probability of each token under the weights and the sampling that made it (behavior policy).
    `policy_steps`: optimizer step of the weights that made each token; never falls.
    """

    token_ids: IntArray
    logprobs: FloatArray
    policy_steps: IntArray
    finish_reason: FinishReason
    incarnation: int = 0
    worker: str = ""
    submit_s: float = 0.0
    start_s: float = 0.0
    first_token_s: float = 0.0
    finish_s: float = 0.0
    sampled: BoolArray | None = None
    """Where False, the token came from the environment of a conversation, not from the policy; None: all sampled.

    Such a token never trains and is not counted as generated; its entry in `logprobs` and `policy_steps` means nothing.
    """
    info: Mapping[str, object] = field(default_factory=dict)
    """What a conversation leaves beside its tokens: messages, the environment's reward and facts."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy made."""
        return len(self.token_ids) if self.sampled is None else int(self.sampled.sum())

    @property
    def sampled_steps(self) -> IntArray:
        """`policy_steps` of the tokens that the policy made, [num_sampled]."""
        return self.policy_steps if self.sampled is None else self.policy_steps[self.sampled]

    def fault(self) -> str | None:
        """What makes the record unusable for training, in words, or None."""
        if not self.num_tokens:
            return "no token"
        counted: dict[str, npt.NDArray[np.generic]] = {
            "log-probs": self.logprobs,
            "policy versions": self.policy_steps,
        }
        if self.sampled is not None:
            counted["marks of sampled tokens"] = self.sampled
        for name, array in counted.items():
            if array.shape != self.token_ids.shape:
                return f"{len(array)} {name} for {self.num_tokens} tokens"
        if not self.num_sampled:
            return "no token of its own"
        logprobs = self.logprobs if self.sampled is None else self.logprobs[self.sampled]
        if missing := int((~np.isfinite(logprobs)).sum()):
            return f"no finite log-prob for {missing} of {self.num_sampled} sampled tokens"
        return None


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a conversation: places of its first token and behind its last among the sampled ones.

    `context`: digest of the token ids that it answers. `end` and `finish_reason`: None while it is being made.
    """

    begin: int
    context: int
    end: int | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Tokens of an answer that is still being made, from place `begin` of its sampled tokens on. Arrays are [n].

    `turns`: those of a conversation so far, all of them; none for a plain answer.
    """

    begin: int
    token_ids: IntArray
    logprobs: FloatArray
    policy_steps: IntArray
    incarnation: int = 0
    start_s: float = 0.0
    first_token_s: float = 0.0
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.token_ids, self.logprobs, self.policy_steps)}
        if len(shapes) > 1 or self.begin < 0:
            raise ValueError(f"a chunk from place {self.begin} on has arrays of the shapes {sorted(shapes)}")

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """The place behind its last token."""
        return self.begin + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class RewardPart:
    """Raw value of one reward function, and the version of that function."""

    name: str
    value: float | None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """Final reward of a completion (None: unscored, it does not train) and what it was made of."""

    reward: float | None
    breakdown: tuple[RewardPart, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """A finished answer of one member of a group, with its reward and the time at which it was scored."""

    prompt: Prompt
    member: int
    completion: Completion
    score: Score
    scored_s: float = 0.0
    attempts: int = 1
    """Requests that it took, the failed ones included."""


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryGroup:
    """The trajectories that share a prompt, by member; `failed` members have none."""

    prompt: Prompt
    order: int
    """Number of its admission, from 0."""
    members: tuple[Trajectory, ...]
    failed: int = 0
    rounds: int = 1
    """1 + how often it was generated again because all of it was over age."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainGroup:
    """A group as it is handed to the trainer: `loss_masks[i]` [T_i] says which tokens of member i train."""

    group: TrajectoryGroup
    loss_masks: tuple[BoolArray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """What one generation batch trains on; `step` is the trainer's optimizer step when it was picked up."""

    step: int
    groups: tuple[TrainGroup, ...]
    waited_s: float = 0.0
