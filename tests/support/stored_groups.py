"""Groups of trajectories of every shape that the store has to keep, and whether two of them are the same."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
from hypothesis import strategies as some

from swift_rlx.store import StoredGroup
from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    SamplingParams,
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


def stored_group(number, rewards=(1.0, 0.0), *, step=0, tokens=5, recipe="", source="length", version="2"):
    """A group with everything that the store keeps beside it; each member's tokens tell it from all others."""
    prompt = Prompt(
        number,
        np.array([number, 7, 7], np.int32),
        columns={"messages": [{"role": "user", "content": f"question {number}"}], "solution": str(number)},
    )
    members = tuple(
        Trajectory(prompt, member, stored_completion(1000 * number + member, step, tokens), score)
        for member, score in enumerate(
            Score(reward, () if reward is None else (RewardPart(source, reward, version),))
            for reward in rewards
        )
    )
    return StoredGroup(
        TrajectoryGroup(prompt, number, members),
        texts=tuple(f"answer {number}.{member}" for member in range(len(members))),
        sampling=tuple(
            SamplingParams(temperature=0.7, seed=member, stop=("x",)) for member in range(len(members))
        ),
        engine="fake 1.0",
        recipe=recipe,
    )


def stored_completion(first, step, tokens):
    """Tokens from `first` on, half of them made by step `step`, half by the one after it."""
    halves = np.full(tokens, step, np.int32)
    halves[tokens // 2 :] += 1
    return Completion(
        token_ids=np.arange(first, first + tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.5, np.float32),
        policy_steps=halves,
        finish_reason=FinishReason.STOP,
        worker="worker-0",
    )


def filled(store, groups, name="a"):
    """The store with these groups, sealed as one round."""
    writer = store.writer(name)
    writer.add(groups)
    writer.seal()
    return store


def stored_facts(stored):
    """All that a stored group says, in comparable form."""
    prompt = stored.group.prompt
    return (
        facts(stored.group),
        prompt.token_ids.tolist(),
        dict(prompt.columns),
        stored.texts,
        stored.sampling,
        stored.engine,
        stored.prompt_id,
        stored.recipe,
    )


def by_order(snapshot):
    """The groups of a snapshot by their number."""
    return {stored.group.order: stored for stored in snapshot.groups(range(snapshot.num_groups))}
