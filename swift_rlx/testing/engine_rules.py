"""The rules for an engine's answers. Each yields a sentence for everything that it finds wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import BackendError, BackendRejected
from swift_rlx.testing.engine_suite import Rule, Subject
from swift_rlx.types import Completion, FinishReason

ABORT_S = 10.0
"""How long an aborted answer may take to end."""
ONE_ID_TRIES = 3
"""How often two requests of one id are sent, should the first be answered before the second arrives."""
SMALL_VOCABULARY = 512
"""Up to this size the whole distribution is asked for."""


async def answers_are_complete_records(subject: Subject) -> AsyncIterator[str]:
    """Arrays of one length, finite log-probs, token ids of the vocabulary, the version served, times in order."""
    served = (await subject.engine.health()).version
    if served != subject.version:
        yield f"health says that {served} is served, not {subject.version}"
    for answer in await subject.answers(range(4)):
        if fault := answer.fault():
            yield f"an answer has {fault}"
            continue
        kinds = [array.dtype.str[1:] for array in (answer.token_ids, answer.logprobs, answer.policy_steps)]
        if kinds != ["i4", "f4", "i4"]:
            yield f"token ids, log-probs and policy steps have dtypes {kinds}, not int32, float32, int32"
        if answer.logprobs.max() > 1e-6:
            yield f"a log-prob is {answer.logprobs.max():g}"
        if answer.token_ids.min() < 0 or answer.token_ids.max() >= subject.case.vocabulary:
            yield f"token ids {answer.token_ids.tolist()} are not all of the vocabulary"
        if set(answer.policy_steps.tolist()) != {served.step} or answer.incarnation != served.incarnation:
            yield f"an answer says it is of steps {set(answer.policy_steps.tolist())}, and {served} is served"
        times = [answer.start_s, answer.first_token_s, answer.finish_s]
        if times != sorted(times) or not np.isfinite(times).all():
            yield f"start, first token and finish are at {times} s"


async def a_seed_gives_the_same_answer_again_and_another_seed_another(subject: Subject) -> AsyncIterator[str]:
    """The seed of a request alone decides, whatever else is in the batch."""
    seeds = range(10, 16)
    together = await subject.answers(seeds)
    alone = [await subject.answer(seed=seed) for seed in seeds]
    for seed, one, other in zip(seeds, together, alone, strict=True):
        if not np.array_equal(one.token_ids, other.token_ids):
            yield f"seed {seed} gave {one.token_ids.tolist()} among others and {other.token_ids.tolist()} alone"
        elif (apart := subject.apart(one.logprobs, other.logprobs)) > subject.case.tolerance:
            yield f"seed {seed}: log-probs among others and alone are {apart:g} nats apart"
    if len({tuple(one.token_ids.tolist()) for one in together}) == 1:
        yield f"{len(seeds)} seeds gave one and the same answer"


async def an_answer_has_at_most_max_tokens_and_says_why_it_ended(subject: Subject) -> AsyncIterator[str]:
    """LENGTH at `max_tokens` or where the model is full, STOP with an ending token."""
    too_many = subject.case.max_model_len + 10
    for most, room in ((1, 1), (5, 5), (too_many, subject.room)):
        for answer in await subject.answers(range(3), max_tokens=most):
            if not 0 < answer.num_tokens <= room:
                yield f"max_tokens {most} gave {answer.num_tokens} tokens, where {room} fit"
                continue
            if answer.finish_reason is FinishReason.STOP:
                if int(answer.token_ids[-1]) not in subject.case.ends:
                    yield f"an answer stopped at token {answer.token_ids[-1]}, which ends none"
            elif answer.finish_reason is not FinishReason.LENGTH:
                yield f"an answer that nobody ended has finish reason {answer.finish_reason.value}"
            elif answer.num_tokens < min(most, room - 1):  # some engines keep one place free
                yield f"max_tokens {most}: {answer.num_tokens} tokens, finish reason length"


async def stop_tokens_end_an_answer_and_belong_to_it(subject: Subject) -> AsyncIterator[str]:
    """An answer ends at the first of `stop_token_ids`."""
    whole = (await subject.answer(temperature=0.0)).token_ids.tolist()
    stop = whole[min(2, len(whole) - 1)]
    answer = await subject.answer(temperature=0.0, stop_token_ids=(stop,))
    expected = whole[: whole.index(stop) + 1]
    if answer.token_ids.tolist() != expected:
        yield f"with stop token {stop} the answer {whole} became {answer.token_ids.tolist()}, not {expected}"
    if answer.finish_reason is not FinishReason.STOP:
        yield f"an answer that ended at a stop token has finish reason {answer.finish_reason.value}"


async def temperature_zero_takes_the_most_likely_token(subject: Subject) -> AsyncIterator[str]:
    """Whatever the seed; and so does `top_k` 1, whose log-probs are 0: those of the filtered distribution."""
    one, other = await subject.answers((1, 2), temperature=0.0)
    if not np.array_equal(one.token_ids, other.token_ids):
        yield f"two seeds gave {one.token_ids.tolist()} and {other.token_ids.tolist()}"
    only = await subject.answer(top_k=1)
    if not np.array_equal(one.token_ids, only.token_ids):
        yield f"top_k 1 gave {only.token_ids.tolist()}, not {one.token_ids.tolist()}"
    if subject.apart(only.logprobs, np.zeros_like(only.logprobs)) > subject.case.tolerance:
        yield f"with top_k 1 every token is certain, and log-probs are {only.logprobs.tolist()}"


async def logprobs_are_those_of_the_sampling(subject: Subject) -> AsyncIterator[str]:
    """At temperature 1 what `logprobs` says of the text; at 0.7 that of log_softmax(logits / 0.7)."""
    tolerance = subject.case.tolerance
    for answer in await subject.answers(range(20, 23)):
        if (apart := subject.apart(answer.logprobs, await subject.scored(answer))) > tolerance:
            yield f"an answer's log-probs are {apart:g} nats from those that the engine finds for its text"
    warm = 0.7
    firsts = {int(one.token_ids[0]): one for one in await subject.answers(range(16), temperature=warm)}
    if len(firsts) < 2:
        yield "16 seeds began with the same token: give a prompt that leaves more open"
        return
    plain = {token: float((await subject.scored(one))[0]) for token, one in firsts.items()}
    high, low = max(plain, key=lambda token: plain[token]), min(plain, key=lambda token: plain[token])
    expected = (plain[high] - plain[low]) / warm
    found = float(firsts[high].logprobs[0] - firsts[low].logprobs[0])
    if abs(found - expected) > 2 * tolerance:
        yield f"at temperature {warm} two tokens are {found:g} nats apart, not {expected:g}"
    if (plain[high] - plain[low]) * (1 / warm - 1) < 4 * tolerance:
        yield "all tokens are equally likely: give a prompt that tells raw log-probs from those at a temperature"
    if subject.case.vocabulary <= SMALL_VOCABULARY:
        row = await _distribution(subject) / warm
        exact = row - np.log(np.exp(row).sum())
        worst = max(abs(float(one.logprobs[0]) - exact[token]) for token, one in firsts.items())
        if worst > 2 * tolerance:
            yield f"at temperature {warm} a log-prob is {worst:g} nats from log_softmax(logits / {warm})"


async def _distribution(subject: Subject) -> npt.NDArray[np.float64]:
    """Log-probs of all tokens after the prompt, [V]."""
    texts = [np.array([*subject.case.prompt, token], np.int32) for token in range(subject.case.vocabulary)]
    return np.array([(await subject.engine.logprobs(text))[-1] for text in texts], np.float64)


async def an_aborted_answer_has_the_tokens_made_so_far(subject: Subject) -> AsyncIterator[str]:
    """The beginning of the answer that the seed gives, with finish reason ABORT, soon."""
    await subject.engine.abort(["nobody's"])
    whole = await subject.answer(max_tokens=subject.longest)
    for delay_s in (0.1, 0.02, 0.0):  # a fast engine is done before
        request = subject.request(max_tokens=subject.longest)
        asking = asyncio.ensure_future(subject.engine.generate(request))
        await asyncio.sleep(delay_s)
        await subject.engine.abort([request.request_id])
        answer = await asyncio.wait_for(asking, ABORT_S)
        if answer.token_ids.tolist() != whole.token_ids.tolist()[: answer.num_tokens]:
            yield f"an answer aborted after {delay_s:g} s is not the beginning of the whole one"
        if not len(answer.token_ids) == len(answer.logprobs) == len(answer.policy_steps):
            yield "an aborted answer has arrays of different lengths"
        if answer.finish_reason is FinishReason.ABORT:
            break
    else:
        yield "an answer that was aborted at once does not have finish reason abort"
    await subject.engine.abort([request.request_id])  # too late
    again = await subject.engine.generate(request)
    if again.finish_reason is FinishReason.ABORT:
        yield "an abort that came when the request had ended hit a later request of that id"


async def a_bad_request_is_rejected_and_harms_nobody_else(subject: Subject) -> AsyncIterator[str]:
    """An empty prompt, token ids outside of the vocabulary, a prompt that is too long: `BackendRejected`."""
    case = subject.case
    bad = {
        "an empty prompt": (),
        "a token id beyond the vocabulary": (*case.prompt, case.vocabulary),
        "a negative token id": (*case.prompt, -1),
        "a prompt longer than the model": (case.prompt[0],) * (case.max_model_len + 1),
    }
    expected = await subject.answer(seed=30)
    asking = [subject.answer(prompt) for prompt in bad.values()]
    good, *results = await asyncio.gather(subject.answer(seed=30), *asking, return_exceptions=True)
    for what, result in zip(bad, results, strict=True):
        if not isinstance(result, BackendRejected):
            said = result if isinstance(result, BaseException) else "an answer"
            yield f"{what} gave {said!r}, not BackendRejected"
    if not isinstance(good, Completion) or not np.array_equal(good.token_ids, expected.token_ids):
        yield f"beside bad requests a good one gave {good!r}"


async def a_request_that_nobody_waits_for_any_more_ends(subject: Subject) -> AsyncIterator[str]:
    """A cancelled `generate` frees its id, and its place: more are cancelled than the engine has places."""
    requests = [subject.request(max_tokens=subject.longest) for _ in range(subject.case.max_inflight + 1)]
    asking = [asyncio.ensure_future(subject.engine.generate(each)) for each in requests]
    await asyncio.sleep(0.02)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.sleep(0.1)
    answer = await subject.engine.generate(requests[0])
    if fault := answer.fault():
        yield f"the next answer of that id has {fault}"


async def an_id_that_is_in_flight_is_refused(subject: Subject) -> AsyncIterator[str]:
    """The second request of an id: `BackendRejected`. The first goes on."""
    # A long answer is still in flight when the second request arrives, also on a busy machine.
    long: dict[str, Any] = {"max_tokens": subject.longest, "barred_token_ids": tuple(subject.case.ends)}
    expected = await subject.answer(**long)
    for _ in range(ONE_ID_TRIES):
        request = subject.request(**long)
        results = await asyncio.gather(
            *(subject.engine.generate(request) for _ in range(2)), return_exceptions=True
        )
        answers = [one for one in results if isinstance(one, Completion)]
        if len(answers) < 2 or max(one.start_s for one in answers) < min(one.finish_s for one in answers):
            break  # they were in flight together
    if len(answers) != 1 or not any(isinstance(one, BackendRejected) for one in results):
        yield f"two requests of one id gave {[type(one).__name__ for one in results]}, not an answer and a refusal"
    elif not np.array_equal(answers[0].token_ids, expected.token_ids):
        yield "the first of two requests of one id did not get its answer"


async def closing_twice_is_once(subject: Subject) -> AsyncIterator[str]:
    """Answers in flight end; later requests are refused."""
    asking = asyncio.ensure_future(subject.answer(max_tokens=subject.longest))
    await asyncio.sleep(0.01)
    await subject.engine.close()
    await subject.engine.close()
    [last] = await asyncio.wait_for(asyncio.gather(asking, return_exceptions=True), ABORT_S)
    if isinstance(last, BaseException) and not isinstance(last, BackendError):
        yield f"an answer in flight raised {last!r}, not a BackendError"
    try:
        await asyncio.wait_for(subject.answer(), ABORT_S)
    except (asyncio.TimeoutError, TimeoutError):
        yield "a request after it is left without an answer"
    except BackendError:
        return
    else:
        yield "a request after it is answered"


RULES: tuple[Rule, ...] = (
    answers_are_complete_records,
    a_seed_gives_the_same_answer_again_and_another_seed_another,
    an_answer_has_at_most_max_tokens_and_says_why_it_ended,
    stop_tokens_end_an_answer_and_belong_to_it,
    temperature_zero_takes_the_most_likely_token,
    logprobs_are_those_of_the_sampling,
    an_aborted_answer_has_the_tokens_made_so_far,
    a_bad_request_is_rejected_and_harms_nobody_else,
    a_request_that_nobody_waits_for_any_more_ends,
    an_id_that_is_in_flight_is_refused,
)
CLOSING: Rule = closing_twice_is_once
