"""The rules for an engine that is given new weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from swift_rlx.backends import WeightFiles
from swift_rlx.testing.engine_suite import Rule, Subject
from swift_rlx.types import Completion, FinishReason, PolicyVersion

DELAYS_S = (0.1, 0.02, 0.3, 0.005, 1.0, 0.0)
"""After how long weights are published beside answers in flight; one of these falls into an answer."""
BESIDE = 4
"""Answers in flight at that time."""


async def published_weights_are_served(subject: Subject) -> AsyncIterator[str]:
    """To every later request, also where a cache knows its prompt; the probe and `health` say so."""
    before, prompt = None, subject.long_prompt
    for files in subject.case.weights:
        assert files.probe is not None
        if before is not None and not files.probe.difference(before) > files.probe.tolerance:
            yield "two of the weights give the same probe: give weights that differ"
        await subject.answer(prompt)  # fills a prefix cache
        version = await _publish(subject, files)
        if (served := (await subject.engine.health()).version) != version:
            yield f"health says {served} after {version} was published"
        before = await subject.engine.logprobs(files.probe.token_ids)
        if (apart := files.probe.difference(before)) > files.probe.tolerance:
            yield f"the probe of {version} is {apart:g} nats off, {files.probe.tolerance:g} are allowed"
        answer = await subject.answer(prompt)
        if set(answer.policy_steps.tolist()) != {version.step}:
            yield f"an answer after {version} was published is of steps {answer.policy_steps.tolist()}"
        scored = await subject.scored(answer, prompt)
        if (off := subject.apart(answer.logprobs, scored)) > subject.case.tolerance:
            yield f"an answer after {version} was published has log-probs {off:g} nats off"


async def answers_in_flight_live_through_publishing_as_declared(subject: Subject) -> AsyncIterator[str]:
    """`keep`: later tokens are of the new weights, all that came before computed anew. `pin`: all of the old."""
    can = subject.engine.capabilities
    if not (can.keep or can.pin):
        return
    switched = 0
    for number, delay_s in enumerate(DELAYS_S):
        old = subject.version.step
        asking = [
            asyncio.ensure_future(subject.answer(seed=seed, max_tokens=subject.longest))
            for seed in range(BESIDE)
        ]
        await asyncio.sleep(delay_s)
        new = (await _publish(subject, subject.case.weights[number % len(subject.case.weights)])).step
        open_ones = [one for one in asking if not one.done()]
        for answer in await asyncio.gather(*asking):
            async for finding in _wrong_after_switch(subject, answer, old, new):
                yield finding
            switched += can.keep and len(set(answer.policy_steps.tolist())) == 2
        switched += 0 if can.keep else len(open_ones)
        if switched >= BESIDE:
            return
    if not switched:
        yield "no publishing fell into an answer: give a larger max_model_len, or an engine that is slower"


async def _wrong_after_switch(subject: Subject, answer: Completion, old: int, new: int) -> AsyncIterator[str]:
    steps = answer.policy_steps
    if fault := answer.fault():
        yield f"an answer in flight has {fault}"
        return
    if answer.finish_reason is FinishReason.ABORT:
        yield "an answer in flight was aborted by publishing"
    if (np.diff(steps) < 0).any() or not set(steps.tolist()) <= {old, new}:
        yield f"an answer in flight from step {old} to {new} has policy steps {steps.tolist()}"
    if subject.engine.capabilities.keep and steps[-1] == new:
        fresh = steps == new
        off = subject.apart(answer.logprobs[fresh], (await subject.scored(answer))[fresh])
        if off > subject.case.tolerance:
            yield f"tokens made after publishing are {off:g} nats from the new weights on the whole text"
    elif not subject.engine.capabilities.keep and set(steps.tolist()) != {old}:
        yield f"an answer that is pinned to step {old} has tokens of step {new}"


async def _publish(subject: Subject, files: WeightFiles) -> PolicyVersion:
    subject.version = PolicyVersion(subject.version.incarnation, subject.version.step + 1)
    await subject.engine.publish(subject.version, files)
    return subject.version


WEIGHT_RULES: tuple[Rule, ...] = (
    published_weights_are_served,
    answers_in_flight_live_through_publishing_as_declared,
)
