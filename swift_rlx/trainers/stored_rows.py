"""Stored completions as ms-swift's samples, token for token as they are in the store: no text is encoded again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from swift.rl_core.data import GRPOSample

from swift_rlx.store import StoredGroup
from swift_rlx.trainers.rollout_rows import Row
from swift_rlx.types import FinishReason, IntArray, Trajectory

IGNORED = -100
"""The label of a token that does not train."""


@dataclass
class StoredSample(GRPOSample):
    """A sample that knows its token ids and labels; `messages` are for the log alone."""

    tokens: dict[str, Any] = field(default_factory=dict)

    def to_template_dict(self) -> dict[str, Any]:
        """What `encoded_as_stored` takes in the place of messages."""
        return dict(self.tokens)


@contextmanager
def encoded_as_stored(template: Any) -> Iterator[None]:
    """Within the context the template leaves stored samples as they are."""

    def encode(inputs: dict[str, Any], return_length: bool = False, **_: Any) -> dict[str, Any]:
        return dict(inputs)

    template.encode = encode
    try:
        yield
    finally:
        del template.encode  # the class's own is there again


@dataclass(frozen=True, slots=True)
class Place:
    """A place of a group in a generation batch. `is_empty`: the group has no completion for it."""

    member: Trajectory
    is_empty: bool = False


def places_of(
    stored: StoredGroup, count: int, *, epoch: int, seed: int, group_id: int, max_tokens: int | None = None
) -> list[Place]:
    """What stands in the `count` places of a group: its completions with a reward that fit into the model's window.

    Where there are more than places, an epoch trains some of them and the next epoch the following ones, in an order
    that depends on the seed and the group alone. Where there are fewer, places stay empty.
    """
    members = stored.group.members
    fit = [one for one in members if may_train(one, max_tokens)]
    if len(fit) > count:
        order = np.random.Generator(np.random.Philox(key=[seed % 2**64, group_id])).permutation(len(fit))
        fit = [fit[order[(epoch * count + place) % len(fit)]] for place in range(count)]
    return [Place(one) for one in fit] + [Place(members[0], is_empty=True)] * (count - len(fit))


def may_train(one: Trajectory, max_tokens: int | None = None) -> bool:
    """Whether it has a reward and a token, and fits into so many tokens with its prompt."""
    reward, completion = one.score.reward, one.completion
    length = len(one.prompt.token_ids) + completion.num_tokens
    is_scored = reward is not None and bool(np.isfinite(reward))
    return is_scored and completion.num_sampled > 0 and (max_tokens is None or length <= max_tokens)


def sample_of(place: Place, messages: Sequence[dict[str, Any]]) -> StoredSample:
    """The sample of a place; an empty one has two tokens, so that it costs next to nothing."""
    prompt, answer = place.member.prompt.token_ids.tolist(), place.member.completion.token_ids.tolist()
    sampled = _sampled(place.member).tolist()
    if place.is_empty:
        prompt, answer, sampled = (prompt or answer)[-1:], (answer or prompt)[-1:], [True]
    labels = [token if is_sampled else IGNORED for token, is_sampled in zip(answer, sampled, strict=True)]
    tokens = {
        "input_ids": prompt + answer,
        "labels": [IGNORED] * len(prompt) + labels,
        "length": len(prompt) + len(answer),
    }
    is_cut = place.member.completion.finish_reason is FinishReason.LENGTH
    return StoredSample(
        messages=[*messages, {"role": "assistant", "content": [] if place.is_empty else answer}],
        finish_reason="length" if is_cut else "stop",
        tokens=tokens,
    )


def row_of(place: Place) -> Row:
    """What `align` needs of a place: log-probs of the sampled tokens, NaN where they are missing."""
    completion, sampled = place.member.completion, _sampled(place.member)
    logprobs = np.asarray(completion.logprobs, "<f4")[sampled]
    count = 1 if place.is_empty else len(logprobs)
    return Row(
        epoch=0,
        index=0,
        member=place.member.member,
        token_ids=b"",
        logprobs=logprobs[:count].tobytes(),
        staleness=np.zeros(count, "<i4").tobytes(),
        fresh=np.ones(count, bool).tobytes(),
        finish_reason="stop",
        rewards=[],
        is_filler=place.is_empty,
    )


def reward_of(place: Place) -> float:
    """NaN for an empty place."""
    return float("nan") if place.is_empty else float(place.member.score.reward)  # type: ignore[arg-type]


def missing_logprobs(places: Sequence[Place]) -> torch.Tensor:
    """[n] bool: a sampled token of the completion has no finite log-prob."""
    found = [
        not place.is_empty and not np.isfinite(place.member.completion.logprobs[_sampled(place.member)]).all()
        for place in places
    ]
    return torch.tensor(found, dtype=torch.bool)


def sampled_ids(member: Trajectory) -> IntArray:
    """Ids of the tokens that the policy made."""
    return np.asarray(member.completion.token_ids)[_sampled(member)]


def _sampled(member: Trajectory) -> Any:
    """[T] bool: tokens that the policy made."""
    completion = member.completion
    return (
        np.ones(completion.num_tokens, bool) if completion.sampled is None else np.asarray(completion.sampled)
    )
