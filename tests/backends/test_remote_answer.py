"""What servers say, turned into records: every rule that a wrong answer breaks, and which error it becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from swift_rlx.backends.remote_answer import (
    Expected,
    Labels,
    NoAnswer,
    Span,
    Times,
    WireAnswer,
    completion,
    decode,
)
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WeightsLost
from swift_rlx.types import Chunk, FinishReason, PolicyVersion

LABELS = Labels("cafe")
SERVED = PolicyVersion(2, 7)


def expected(**changes: Any) -> Expected:
    given = {"labels": LABELS, "served": SERVED, "is_pinned": False, "max_tokens": 4, "vocabulary": 16}
    return Expected(url="http://a:1", **(given | changes))


def answer(**changes: Any) -> WireAnswer:
    given = {
        "token_ids": [3, 4, 5],
        "logprobs": [-0.5, -1.5, 0.0],
        "finish_reason": FinishReason.STOP,
        "spans": [Span(LABELS.of(SERVED), 0, 3)],
    }
    return WireAnswer(**(given | changes))


def made(one: WireAnswer, **changes: Any) -> Any:
    return completion(one, expected(**changes), Times(1.0, 2.0, 3.0, 5.0))


def test_a_sound_answer_becomes_a_record() -> None:
    record = made(answer())
    assert record.fault() is None
    assert (record.token_ids.tolist(), record.policy_steps.tolist()) == ([3, 4, 5], [7, 7, 7])
    assert np.allclose(record.logprobs, [-0.5, -1.5, 0.0])
    assert [array.dtype for array in (record.token_ids, record.logprobs)] == [np.int32, np.float32]
    assert (record.incarnation, record.worker, record.finish_reason) == (2, "http://a:1", FinishReason.STOP)
    assert (record.submit_s, record.start_s, record.first_token_s, record.finish_s) == (1.0, 2.0, 3.0, 5.0)


def test_a_record_begins_with_what_earlier_attempts_made() -> None:
    behind = Chunk(0, np.int32([9, 8]), np.float32([-2, -3]), np.int32([6, 6]), 2)
    record = completion(answer(), expected(), Times(1.0, 2.0, None, 5.0), behind)
    assert (record.token_ids.tolist(), record.policy_steps.tolist()) == ([9, 8, 3, 4, 5], [6, 6, 7, 7, 7])
    assert np.allclose(record.logprobs, [-2, -3, -0.5, -1.5, 0.0])
    assert (record.first_token_s, record.fault()) == (5.0, None)


def test_tokens_of_later_weights_carry_their_step() -> None:
    spans = [Span(LABELS.of(SERVED), 0, 1), Span(LABELS.of(PolicyVersion(2, 9)), 1, 3)]
    assert made(answer(spans=spans)).policy_steps.tolist() == [7, 9, 9]


def test_an_answer_that_is_pinned_has_the_version_of_its_adapter_whatever_the_engine_calls_its_weights() -> (
    None
):
    record = made(answer(spans=[Span("default", 0, 3)]), is_pinned=True)
    assert record.policy_steps.tolist() == [7, 7, 7]


def test_an_answer_that_was_ended_before_its_first_token_is_empty() -> None:
    record = made(answer(token_ids=[], logprobs=[], spans=[], finish_reason=FinishReason.ABORT))
    assert (record.num_tokens, record.finish_reason) == (0, FinishReason.ABORT)


def test_a_server_that_says_only_which_weights_an_answer_ended_with_is_believed_if_they_did_not_change() -> (
    None
):
    assert made(answer(spans=None, label=LABELS.of(SERVED))).policy_steps.tolist() == [7, 7, 7]
    with pytest.raises(WeightsLost, match=r"answered with weights 2\.8, and 2\.7 is what it acknowledged"):
        made(answer(spans=None, label=LABELS.of(PolicyVersion(2, 8))))


OTHER = [
    ("no token", {"token_ids": [], "logprobs": []}, BackendUnavailable, "an answer without a token"),
    ("too many", {"token_ids": [1] * 5, "logprobs": [-1.0] * 5}, BackendUnavailable, "5 tokens, where 4 were asked"),
    ("foreign", {"token_ids": [3, 16, 5]}, BackendUnavailable, "ids from 3 to 16; .* 0 to 15: does the server"),
    ("fewer", {"logprobs": [-1.0] * 2}, BackendRejected, "2 log-probs for 3 tokens"),
    ("more", {"logprobs": [-1.0] * 7}, BackendRejected, "7 log-probs for 3 tokens"),
    ("none", {"logprobs": []}, BackendRejected, "0 log-probs for 3 tokens"),
    ("nan", {"logprobs": [-1.0, float("nan"), -1.0]}, BackendRejected, "1 log-probs that are none, such as nan"),
    ("-inf", {"logprobs": [-1.0, float("-inf"), -1.0]}, BackendRejected, "such as -inf"),
    ("clamped", {"logprobs": [-9999.0] * 3}, BackendRejected, "3 log-probs that are none, such as -9999"),
    ("positive", {"logprobs": [-1.0, 0.5, -1.0]}, BackendRejected, "such as 0.5"),
    ("no versions", {"spans": []}, BackendUnavailable, "did not say which weights made each of 3 tokens"),
    ("a gap", {"spans": [Span(LABELS.of(SERVED), 0, 2)]}, BackendUnavailable, "did not say which weights"),
    ("backwards", {"spans": [Span(LABELS.of(PolicyVersion(2, 9)), 0, 1), Span(LABELS.of(SERVED), 1, 3)]},
     BackendUnavailable, "did not say which weights"),
    ("its own", {"spans": [Span("default", 0, 3)]}, WeightsLost, "this run did not publish .'default'.: it was"),
    ("another run", {"spans": [Span(Labels("beef").of(SERVED), 0, 3)]}, WeightsLost, "did not publish"),
    ("older", {"spans": [Span(LABELS.of(PolicyVersion(2, 6)), 0, 3)]}, WeightsLost, r"2\.6, and 2\.7 is what it ack"),
    ("earlier start", {"spans": [Span(LABELS.of(PolicyVersion(1, 9)), 0, 3)]}, WeightsLost, r"weights 1\.9, and"),
    ("label", {"spans": None, "label": "default"}, WeightsLost, "did not publish"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "words"), [one[1:] for one in OTHER], ids=[one[0] for one in OTHER]
)
def test_an_answer_that_cannot_train_is_refused(
    changes: dict[str, Any], error: type[BackendError], words: str
) -> None:
    with pytest.raises(error, match=f"http://a:1 .*{words}") as caught:
        made(answer(**changes))
    assert type(caught.value) is error


def test_tokens_without_log_probs_are_counted_as_lost() -> None:
    with pytest.raises(BackendRejected) as caught:
        made(answer(logprobs=[]))
    assert caught.value.lost_tokens == 3


@pytest.mark.parametrize("version", [PolicyVersion(0, 0), PolicyVersion(3, 123456)])
def test_a_label_names_its_version_and_run(version: PolicyVersion) -> None:
    assert LABELS.version(LABELS.of(version)) == version
    assert Labels("beef").version(LABELS.of(version)) is None


@pytest.mark.parametrize(
    "label",
    ["", "default", "rlx", "rlx-cafe", "rlx-cafe-", "rlx-cafe-1", "rlx-cafe-1.x", "rlx-cafe-.1", "rlx-cafe-1.2.3",
     "rlx-cafe--1.2", "x-rlx-cafe-1.2", "rlx-cafe-1.²", "rlx-cafe-1.99999999999999"],
)  # fmt: skip
def test_what_is_no_label_of_ours_names_nothing(label: str) -> None:
    assert LABELS.version(label) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b"[1, 2]",
        b"[1e999]",
        b"[NaN]",
        b"[" + b"9" * 5000 + b"]",
        b"null",
    ],
    ids=["empty", "no utf-8", "torn", "deep", "integers", "overflow", "nan", "huge", "null"],
)
def test_bytes_of_another_kind_are_no_answer_whatever_they_are(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        decode(body, list[bool])
