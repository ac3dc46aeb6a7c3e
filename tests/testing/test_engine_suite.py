"""The suite for engines: the fake engine keeps its rules, alone and in a process, and a planted fault is found."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest
from worker_runs import spec, weights, worker

from swift_rlx.backends import Capabilities, Health, unwatched
from swift_rlx.backends.progress import sampled_part
from swift_rlx.errors import BackendRejected, ConfigError
from swift_rlx.testing import EngineCase, check_engine
from swift_rlx.testing.fake_engine import FakeEngine
from swift_rlx.types import FinishReason, PolicyVersion


def case(folder, **changes):
    settings = {"vocabulary": 16, "max_model_len": 60, "weights": [weights(folder, 1), weights(folder, 2)]}
    return EngineCase(**(settings | changes))


def engine_of(folder, kind=FakeEngine, token_s=0.0005, **options):
    return kind(replace(spec(folder, token_s=token_s, **options), max_model_len=60))


@pytest.mark.slow
@pytest.mark.parametrize("update", ["keep", "pin", ""])
def test_the_fake_engine_keeps_the_rules(tmp_path, update):
    check_engine(lambda: engine_of(tmp_path, update=update), case(tmp_path))


@pytest.mark.slow
def test_so_does_a_worker_process_around_it(tmp_path):
    async def make():
        one = worker(tmp_path, token_s=0.0005)
        await one.start()
        return one

    check_engine(make, case(tmp_path, max_model_len=200))


class WrongVersion(FakeEngine):
    async def health(self):
        return Health(PolicyVersion(0, 99))


class OneSeed(FakeEngine):
    async def generate(self, request, *watch):
        return await super().generate(replace(request, sampling=replace(request.sampling, seed=0)), *watch)


class Drawn(FakeEngine):
    number = 0

    async def generate(self, request, *watch):
        self.number += 1
        sampling = replace(request.sampling, seed=self.number)
        return await super().generate(replace(request, sampling=sampling), *watch)


class Altered(FakeEngine):
    """Answers are changed on the way out."""

    def change(self, request, completion):
        return completion

    async def generate(self, request, *watch):
        return self.change(request, await super().generate(request, *watch))


class AlwaysStop(Altered):
    def change(self, request, completion):
        return replace(completion, finish_reason=FinishReason.STOP)


class WithoutTheStop(Altered):
    def change(self, request, completion):
        cut = -1 if completion.finish_reason is FinishReason.STOP else None
        names = ("token_ids", "logprobs", "policy_steps")
        return replace(completion, **{name: getattr(completion, name)[:cut] for name in names})


class LooseTemperature(FakeEngine):
    async def generate(self, request, *watch):
        sampling = replace(request.sampling, temperature=1.0)
        return await super().generate(replace(request, sampling=sampling), *watch)


class Raw(FakeEngine):
    """Log-probs as if the temperature were 1."""

    async def generate(self, request, *watch):
        completion = await super().generate(request, *watch)
        text = np.concatenate([request.prompt.token_ids, completion.token_ids])
        return replace(completion, logprobs=(await self.logprobs(text))[len(request.prompt.token_ids) - 1 :])


class Deaf(FakeEngine):
    async def abort(self, request_ids):
        pass


class Remembering(FakeEngine):
    async def abort(self, request_ids):
        self._aborted |= set(request_ids)


class Lenient(FakeEngine):
    def _check(self, request):
        ids = np.clip(request.prompt.token_ids, 0, 15)
        object.__setattr__(request.prompt, "token_ids", ids if len(ids) else np.zeros(1, np.int32))


class Brittle(FakeEngine):
    """A bad request takes its neighbors with it."""

    async def generate(self, request, *watch):
        try:
            return await super().generate(request, *watch)
        except BackendRejected:
            self._aborted |= self._running
            raise


class Stubborn(FakeEngine):
    """Goes on with what nobody waits for, and refuses its id."""

    def __init__(self, spec):
        super().__init__(spec)
        self.tasks = {}

    async def generate(self, request, *watch):
        if request.request_id in self.tasks and not self.tasks[request.request_id].done():
            raise BackendRejected(f"{request.request_id} is in flight")
        task = self.tasks[request.request_id] = asyncio.ensure_future(super().generate(request, *watch))
        return await asyncio.shield(task)

    async def _sample(self, request, *watch):
        result = await super()._sample(request, *watch)
        if len(result[0]) > 30 and request.request_id not in self._aborted:
            await asyncio.sleep(0.3)
        return result


class Doubling(FakeEngine):
    """Knows not which ids are in flight."""

    async def generate(self, request, *watch):
        self._running.discard(request.request_id)
        return await super().generate(request, *watch)


class Leaking(FakeEngine):
    """Has two places, and does not get them back from who is cancelled."""

    def __init__(self, spec):
        super().__init__(spec)
        self.places = asyncio.Semaphore(2)

    async def generate(self, request, *watch):
        await self.places.acquire()
        try:
            answer = await super().generate(request, *watch)
        except BackendRejected:
            self.places.release()
            raise
        self.places.release()
        return answer


class KeepsItsPrefixes(FakeEngine):
    """Begins an answer as it did under the weights that first read its prompt, if that fills a block of a cache."""

    def __init__(self, spec):
        super().__init__(spec)
        self.cached = {}

    async def _sample(self, request, *watch):
        ids, served = request.prompt.token_ids.tolist(), self._weights
        if len(ids) < 16:
            return await super()._sample(request, *watch)
        table = served.logits_VV.copy()
        table[ids[-1]] = self.cached.setdefault(tuple(ids), table[ids[-1]])
        self._weights = replace(served, logits_VV=table)
        try:
            return await super()._sample(request, *watch)
        finally:
            self._weights = served


class Stale(FakeEngine):
    """Acknowledges weights without using them."""

    def __init__(self, spec):
        super().__init__(replace(spec, options={**spec.options, "ignores_weights": True}))


class FalselyPinned(FakeEngine):
    def __init__(self, spec):
        super().__init__(spec)
        self._declared = Capabilities(pin=True)

    async def generate(self, request, *watch):
        self.capabilities = Capabilities(keep=True)
        try:
            return await super().generate(request, *watch)
        finally:
            self.capabilities = self._declared


class FallingVersions(Altered):
    def change(self, request, completion):
        return replace(completion, policy_steps=completion.policy_steps[::-1].copy())


class Immortal(FakeEngine):
    async def close(self):
        pass


class TellsTheEnd(FakeEngine):
    async def generate(self, request, on_progress=unwatched):
        answer = await super().generate(request)
        on_progress(sampled_part(answer))
        return answer


class TellsOtherTokens(FakeEngine):
    async def generate(self, request, on_progress=unwatched):
        def other(chunk):
            on_progress(replace(chunk, token_ids=chunk.token_ids + 1))

        return await super().generate(request, other)


class TellsTwice(FakeEngine):
    async def generate(self, request, on_progress=unwatched):
        def twice(chunk):
            on_progress(chunk)
            on_progress(chunk)

        return await super().generate(request, twice)


class CountsAnew(FakeEngine):
    """Makes `max_tokens` tokens behind a prefix."""

    async def generate(self, request, *watch):
        kept = 0 if request.prefix is None else request.prefix.num_tokens
        sampling = replace(request.sampling, max_tokens=request.sampling.max_tokens + kept)
        return await super().generate(replace(request, sampling=sampling), *watch)


class AnswersTheRest(Altered):
    def change(self, request, completion):
        kept = 0 if request.prefix is None else request.prefix.num_tokens
        names = ("token_ids", "logprobs", "policy_steps")
        return replace(completion, **{name: getattr(completion, name)[kept:] for name in names})


PLANTED = [
    (WrongVersion, "answers_are_complete_records: health says that 0.99 is served, not 0.0"),
    (OneSeed, "a_seed_gives_the_same_answer_again_and_another_seed_another: 6 seeds gave one and the same"),
    (Drawn, "a_seed_gives_the_same_answer_again_and_another_seed_another: seed 10 gave"),
    (AlwaysStop, "an_answer_has_at_most_max_tokens_and_says_why_it_ended: an answer stopped at token"),
    (WithoutTheStop, "stop_tokens_end_an_answer_and_belong_to_it: with stop token"),
    (LooseTemperature, "temperature_zero_takes_the_most_likely_token: two seeds gave"),
    (Raw, "logprobs_are_those_of_the_sampling: at temperature 0.7 two tokens are"),
    (Raw, "nats from log_softmax(logits / 0.7)"),
    (Deaf, "an_aborted_answer_has_the_tokens_made_so_far: an answer that was aborted at once does not"),
    (Remembering, "an abort that came when the request had ended hit a later request"),
    (Lenient, "a_bad_request_is_rejected_and_harms_nobody_else: an empty prompt gave 'an answer'"),
    (Brittle, "a_bad_request_is_rejected_and_harms_nobody_else: beside bad requests a good one gave"),
    (Stubborn, "a_request_that_nobody_waits_for_any_more_ends: raised BackendRejected"),
    (
        TellsTheEnd,
        "what_is_told_is_the_beginning_of_the_answer: 56 tokens were told of an answer of 56, its last",
    ),
    (TellsOtherTokens, "what was told is not the beginning of the answer, but only its first 0 tokens"),
    (TellsTwice, "what_is_told_is_the_beginning_of_the_answer: chunks begin at [0, 0, 1, 1, 2, 2"),
    (CountsAnew, "an_answer_goes_on_behind_a_prefix_or_begins_anew: behind 1 tokens the answer is"),
    (AnswersTheRest, "an_answer_goes_on_behind_a_prefix_or_begins_anew: behind 4 tokens the answer is"),
    (
        Doubling,
        "an_id_that_is_in_flight_is_refused: two requests of one id gave ['Completion', 'Completion']",
    ),
    (Immortal, "closing_twice_is_once: a request after it is answered"),
]
PLANTED_IN_WEIGHTS = [
    (Stale, "published_weights_are_served: the probe of 0.1 is"),
    (KeepsItsPrefixes, "published_weights_are_served: an answer after 0.1 was published has log-probs"),
    (FalselyPinned, "an answer that is pinned to step"),
    (FallingVersions, "answers_in_flight_live_through_publishing_as_declared: an answer in flight from step"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "finding"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_fault_is_found(tmp_path, kind, finding):
    with pytest.raises(AssertionError, match=re.escape(finding)):
        check_engine(lambda: engine_of(tmp_path, kind, token_s=0.0), case(tmp_path, weights=()))


@pytest.mark.slow
def test_an_engine_that_loses_the_places_of_cancelled_requests_is_found(tmp_path):
    few = case(tmp_path, weights=(), max_inflight=2, limit_s=1.0)
    with pytest.raises(
        AssertionError, match="a_request_that_nobody_waits_for_any_more_ends: not done after 1 s"
    ):
        check_engine(lambda: engine_of(tmp_path, Leaking, token_s=0.001), few)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "finding"), PLANTED_IN_WEIGHTS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_planted_fault_in_publishing_is_found(tmp_path, kind, finding):
    with pytest.raises(AssertionError, match=re.escape(finding)):
        check_engine(lambda: engine_of(tmp_path, kind), case(tmp_path))


def test_one_set_of_weights_or_weights_without_a_probe_are_refused(tmp_path):
    one = weights(tmp_path, 1)
    with pytest.raises(ConfigError, match="at least two that differ, each with a probe"):
        case(tmp_path, weights=[one])
    with pytest.raises(ConfigError, match="at least two that differ, each with a probe"):
        case(tmp_path, weights=[one, replace(one, probe=None)])
    with pytest.raises(ConfigError, match="max_model_len 20 is refused: the suite needs 27"):
        case(tmp_path, max_model_len=20)
