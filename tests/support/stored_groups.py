"""Groups of trajectories of every shape that the store has to keep, and whether two of them are the same."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
from hypothesis import strategies as some

from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    Score,
    Trajectory,
    TrajectoryGroup,
)

SMALL, LARGE = some.integers(0, 2**31 - 1), some.integers(0, 2**62)
SECONDS = some.floats(0, 1e9)
TEXT = some.text(max_size=5)
PLAIN = some.recursive(
    some.none() | some.booleans() | some.integers() | TEXT,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def arrays(length, element, dtype):
    return some.lists(element, min_size=length, max_size=length).map(lambda values: np.array(values, dtype))


@some.composite
def completions(draw):
    length = draw(some.integers(0, 7))
    logprob = some.floats(-100, 0, width=32) | some.just(float("nan"))
    return Completion(
        token_ids=draw(arrays(length, SMALL, np.int32)),
        logprobs=draw(arrays(length, logprob, np.float32)),
        policy_steps=draw(arrays(length, some.integers(-1, 3), np.int32)),
        finish_reason=draw(some.sampled_from(FinishReason)),
        incarnation=draw(SMALL),
        worker=draw(TEXT),
        submit_s=draw(SECONDS),
        start_s=draw(SECONDS),
        first_token_s=draw(SECONDS),
        finish_s=draw(SECONDS),
        sampled=draw(some.none() | arrays(length, some.booleans(), np.bool_)),
        info=draw(some.dictionaries(TEXT, PLAIN, max_size=2)),
    )


@some.composite
def groups(draw, order=LARGE):
    prompt = Prompt(draw(LARGE), np.arange(3, dtype=np.int32), draw(SMALL))
    parts = some.builds(RewardPart, TEXT, some.none() | some.floats(allow_nan=False), TEXT)
    scores = some.builds(
        Score, some.none() | some.floats(allow_nan=False), some.lists(parts, max_size=2).map(tuple)
    )
    members = tuple(
        Trajectory(prompt, member, draw(completions()), draw(scores), draw(SECONDS), draw(SMALL))
        for member in range(draw(some.integers(1, 3)))
    )
    return TrajectoryGroup(prompt, draw(order), members, draw(SMALL), draw(SMALL))


def facts(group):
    """All that a group says, but the prompt's tokens and columns, in comparable form."""
    return [
        (
            group.prompt.key,
            group.order,
            group.failed,
            group.rounds,
            one.prompt.key,
            one.member,
            repr(one.score),
            one.scored_s,
            one.attempts,
            json.dumps(one.completion.info, sort_keys=True),
            *(_comparable(getattr(one.completion, each.name)) for each in fields(Completion)[:-1]),
        )
        for one in group.members
    ]


def _comparable(value):
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value


def plain_group(order, tokens=4, members=2):
    """One without anything special."""
    prompt = Prompt(order, np.zeros(3, np.int32))
    completion = Completion(
        token_ids=np.arange(tokens, dtype=np.int32) + order,
        logprobs=np.full(tokens, -0.5, np.float32),
        policy_steps=np.zeros(tokens, np.int32),
        finish_reason=FinishReason.STOP,
        worker="worker-0",
    )
    score = Score(1.0, (RewardPart("length", 1.0, "2"),))
    return TrajectoryGroup(
        prompt, order, tuple(Trajectory(prompt, member, completion, score) for member in range(members))
    )
