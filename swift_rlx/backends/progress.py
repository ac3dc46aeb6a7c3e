"""What is told of an answer while it is made, and what of it another attempt can go on behind.

worker --Chunk, Chunk, ...--> Draft --whole()--> `GenerationRequest.prefix` of the next attempt
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from swift_rlx.types import Chunk, Completion

Record = TypeVar("Record", Completion, Chunk)
OnProgress = Callable[[Chunk], None]
"""Takes new tokens of an answer. One without tokens says only that the answer is where it was."""


def unwatched(chunk: Chunk) -> None:
    """Takes no notice."""


class Draft:
    """The tokens of one answer from place `begin` on, as far as they were told."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self._chunks: list[Chunk] = []

    @property
    def num_tokens(self) -> int:
        return self.end - self.begin

    @property
    def end(self) -> int:
        """The place behind the last token."""
        return self._chunks[-1].end if self._chunks else self.begin

    def add(self, chunk: Chunk) -> int:
        """Take a chunk; how many tokens it replaces, because the worker began anew before them.

        What would leave a gap is of no use, and is left out.
        """
        if chunk.begin > self.end:
            return 0
        replaced = self.cut(chunk.begin)
        self.begin = min(self.begin, chunk.begin)
        self._chunks.append(chunk)
        return replaced

    def cut(self, place: int) -> int:
        """Drop the tokens from this place on; how many these were."""
        before = self.num_tokens
        while self._chunks and self._chunks[-1].begin >= place:
            self._chunks.pop()
        if self._chunks and self._chunks[-1].end > place:
            self._chunks.append(beginning(self._chunks.pop(), place))
        return before - self.num_tokens

    def whole(self) -> Chunk | None:
        """All of it as one chunk; None: no token was told."""
        if len(self._chunks) > 1:
            self._chunks = [joined(self._chunks)]
        return self._chunks[0] if self.num_tokens else None


def as_arrays(record: Record) -> Record:
    """With the arrays that it should have: lists and other integers do too, as long as they say the same."""
    return replace(
        record,
        token_ids=np.asarray(record.token_ids, np.int32),
        logprobs=np.asarray(record.logprobs, np.float32),
        policy_steps=np.asarray(record.policy_steps, np.int32),
    )


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Adjacent chunks as one, with the times of the first that has tokens, and the turns of the last."""
    first = next((one for one in chunks if one.num_tokens), chunks[0])
    return replace(
        first,
        token_ids=np.concatenate([one.token_ids for one in chunks]),
        logprobs=np.concatenate([one.logprobs for one in chunks]),
        policy_steps=np.concatenate([one.policy_steps for one in chunks]),
        turns=chunks[-1].turns,
    )


def beginning(chunk: Chunk, end: int) -> Chunk:
    """What it has before place `end`."""
    return section(chunk, chunk.begin, end)


def section(chunk: Chunk, begin: int, end: int) -> Chunk:
    """What it has from place `begin` up to before `end`."""
    part = slice(begin - chunk.begin, end - chunk.begin)
    return replace(
        chunk,
        begin=begin,
        token_ids=chunk.token_ids[part],
        logprobs=chunk.logprobs[part],
        policy_steps=chunk.policy_steps[part],
    )


def sampled_part(completion: Completion) -> Chunk:
    """The tokens that the policy made, as a chunk from place 0 on."""
    mask = slice(None) if completion.sampled is None else completion.sampled
    return Chunk(
        begin=0,
        token_ids=completion.token_ids[mask],
        logprobs=completion.logprobs[mask],
        policy_steps=completion.policy_steps[mask],
        incarnation=completion.incarnation,
        start_s=completion.start_s,
        first_token_s=completion.first_token_s,
    )


def shared_tokens(one: Chunk, other: Chunk) -> int:
    """How many tokens two chunks from the same place on have in common before they differ in anything."""
    count = min(one.num_tokens, other.num_tokens)
    same = np.ones(count, bool)
    for name in ("token_ids", "logprobs", "policy_steps"):
        same &= getattr(one, name)[:count] == getattr(other, name)[:count]
    return count if same.all() else int(same.argmin())
