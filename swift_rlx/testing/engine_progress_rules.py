"""The rules for what an engine tells of an answer that it makes, and for going on behind what another has made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np

from swift_rlx.backends.progress import beginning, joined, sampled_part, shared_tokens
from swift_rlx.testing.engine_suite import Rule, Subject
from swift_rlx.types import Chunk, Completion

SILENCE_S = 5.0
"""An answer that takes longer is told of before its end."""
MARK = 0.25
"""Nats by which the log-probs of a prefix differ from those that the engine itself would give."""


async def what_is_told_is_the_beginning_of_the_answer(subject: Subject) -> AsyncIterator[str]:
    """Chunk after chunk, with the log-probs and versions of the answer; the last token comes with the answer alone."""
    if not subject.engine.capabilities.streams:
        return
    told: list[list[Chunk]] = [[] for _ in range(4)]
    begin = asyncio.get_running_loop().time()
    answers = await asyncio.gather(
        *(
            subject.engine.generate(subject.request(seed=seed, max_tokens=subject.longest), chunks.append)
            for seed, chunks in enumerate(told)
        )
    )
    for answer, chunks in zip(answers, told, strict=True):
        for finding in _wrongly_told(chunks, answer):
            yield finding
    if asyncio.get_running_loop().time() - begin > SILENCE_S and not any(told):
        yield f"nothing was told of answers that took more than {SILENCE_S:g} s"


def _wrongly_told(chunks: list[Chunk], answer: Completion) -> list[str]:
    chunks = [chunk for chunk in chunks if chunk.num_tokens]
    if not chunks:
        return []
    ends = [0, *(chunk.end for chunk in chunks)]
    if [chunk.begin for chunk in chunks] != ends[:-1]:
        return [f"chunks begin at {[chunk.begin for chunk in chunks]} and end at {ends[1:]}"]
    whole = joined(chunks)
    if whole.num_tokens >= answer.num_tokens:
        return [
            f"{whole.num_tokens} tokens were told of an answer of {answer.num_tokens}, its last one included"
        ]
    if (shared := shared_tokens(whole, sampled_part(answer))) < whole.num_tokens:
        return [f"what was told is not the beginning of the answer, but only its first {shared} tokens"]
    return []


async def an_answer_goes_on_behind_a_prefix_or_begins_anew(subject: Subject) -> AsyncIterator[str]:
    """The prefix stays as it is, the rest is that of the undisturbed answer, and limits are of the whole."""
    whole = await subject.answer(temperature=0.0)
    for count in (1, whole.num_tokens // 2):
        prefix = beginning(replace(sampled_part(whole), logprobs=whole.logprobs - np.float32(MARK)), count)
        for stop in ((), (int(whole.token_ids[-2]),)):
            request = replace(subject.request(temperature=0.0, stop_token_ids=stop), prefix=prefix)
            expected = await subject.answer(temperature=0.0, stop_token_ids=stop)
            if expected.num_tokens <= count:
                continue  # the prefix of an answer that has ended is no prefix
            answer = await subject.engine.generate(request)
            for finding in _wrongly_continued(subject, answer, prefix, expected):
                yield f"behind {count} tokens{' and to a stop token' if stop else ''} {finding}"
    other = await subject.answer(seed=41)
    prefix = beginning(sampled_part(other), 2)
    answer = await subject.engine.generate(replace(subject.request(seed=42), prefix=prefix))
    if fault := answer.fault():
        yield f"behind a prefix an answer has {fault}"


def _wrongly_continued(
    subject: Subject, answer: Completion, prefix: Chunk, expected: Completion
) -> list[str]:
    if answer.token_ids.tolist() != expected.token_ids.tolist():
        return [f"the answer is {answer.token_ids.tolist()}, not {expected.token_ids.tolist()}"]
    found, kept = [], shared_tokens(prefix, sampled_part(answer))
    if (apart := subject.apart(answer.logprobs[kept:], expected.logprobs[kept:])) > subject.case.tolerance:
        found.append(f"log-probs are {apart:g} nats apart from those of the undisturbed answer")
    if answer.finish_reason is not expected.finish_reason:
        found.append(f"the finish reason is {answer.finish_reason.value}, not {expected.finish_reason.value}")
    return found


PROGRESS_RULES: tuple[Rule, ...] = (
    what_is_told_is_the_beginning_of_the_answer,
    an_answer_goes_on_behind_a_prefix_or_begins_anew,
)
