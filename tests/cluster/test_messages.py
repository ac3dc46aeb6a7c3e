"""What goes through the channel comes out equal, and what has no business there is refused."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from swift_rlx import errors
from swift_rlx.backends import Capabilities, EngineSpec, GenerationRequest, WeightFiles, WeightKind
from swift_rlx.backends.weights import Probe
from swift_rlx.cluster import messages
from swift_rlx.cluster.messages import FROM_WORKER, TO_WORKER, encode
from swift_rlx.types import Chunk, Completion, FinishReason, PolicyVersion, Prompt, SamplingParams, Turn

PROMPT = Prompt(
    index=3,
    token_ids=np.array([1, 2, 300_000], np.int32),
    epoch=2,
    columns={"solution": object()},
    model_inputs={
        "pixel_values": np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float16),
        "image_grid_thw": np.array([[1, 2, 2]], np.int64),
        "mask": np.array([True, False]),
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5, np.float64),
        "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    },
    expected_tokens=77,
)
SAMPLING = SamplingParams(9, 0.7, 0.9, 5, 0.1, 1.2, ("\n", "结束"), (4, 5), seed=2**63 - 1)
COMPLETION = Completion(
    token_ids=np.array([5, 6], np.int32),
    logprobs=np.array([-0.5, -float("inf")], np.float32),
    policy_steps=np.array([3, 4], np.int32),
    finish_reason=FinishReason.ABORT,
    incarnation=1,
    worker="w",
    finish_s=2.5,
    sampled=np.array([True, False]),
    info={"messages": [{"role": "user", "content": "你好"}], "reward": None, "obs": np.ones(2, np.float32)},
)
PROMPT_ALONE = dataclasses.replace(PROMPT, columns={})
CHUNK = Chunk(
    3,
    COMPLETION.token_ids,
    COMPLETION.logprobs,
    COMPLETION.policy_steps,
    incarnation=1,
    first_token_s=2.0,
    turns=(Turn(0, 2**64 - 1, 3, FinishReason.STOP), Turn(3, 7)),
)
FILES = WeightFiles(
    WeightKind.ADAPTER, "/dev/shm/x", Probe(PROMPT.token_ids, np.array([-1.0, -2.0], np.float32), 1e-3)
)
SPEC = EngineSpec("vllm", "/m", PolicyVersion(1, 2), devices=("0", "1"), options={"a": [1, {"b": 2.5}]})


def same(one, other):
    """Equal records, arrays compared by dtype and value."""
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one) or isinstance(one, msgspec.Struct):
        is_struct = isinstance(one, msgspec.Struct)
        fields = one.__struct_fields__ if is_struct else [each.name for each in dataclasses.fields(one)]
        return type(one) is type(other) and all(same(getattr(one, f), getattr(other, f)) for f in fields)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize(
    "message",
    [
        messages.Start(SPEC, ("/a", ""), 30.0, 15.0),
        messages.Call(
            1,
            messages.Generate(
                messages.without_columns(GenerationRequest("0/3/1#1", PROMPT, 1, SAMPLING, 2, 1.5))
            ),
        ),
        messages.Call(
            1, messages.Generate(GenerationRequest("0/3/1#2", PROMPT_ALONE, 1, SAMPLING, prefix=CHUNK))
        ),
        messages.Call(2, messages.Publish(PolicyVersion(0, 5), FILES, 60.0)),
        messages.Call(3, messages.AskHealth()),
        messages.Call(4, messages.AskLogprobs(PROMPT.token_ids)),
        messages.Call(5, messages.Close()),
        messages.Cancel(1),
        messages.Abort(("a", "b")),
    ],
    ids=lambda message: type(getattr(message, "body", message)).__name__,
)
def test_what_the_trainer_says_arrives_equal(message):
    assert same(message, TO_WORKER.decode(encode(message)))


@pytest.mark.parametrize(
    "message",
    [
        messages.Beat("importing"),
        messages.Ready(Capabilities(pin=True), "3 MiB"),
        messages.Progress(((1, CHUNK), (4, CHUNK))),
        messages.Reply(1, messages.Generated(COMPLETION)),
        messages.Reply(2, messages.Done()),
        messages.Reply(3, messages.Serving(PolicyVersion(2, 9))),
        messages.Reply(4, messages.Logprobs(COMPLETION.logprobs)),
        messages.Failed(5, messages.ErrorRecord("BackendRejected", "no", 3)),
        messages.Dying(messages.ErrorRecord("WorkerDied", "gone"), "Traceback"),
    ],
    ids=lambda message: type(getattr(message, "body", message)).__name__,
)
def test_what_the_worker_says_arrives_equal(message):
    assert same(message, FROM_WORKER.decode(encode(message)))


def test_the_comparison_of_these_tests_sees_a_difference():
    other = dataclasses.replace(COMPLETION, policy_steps=COMPLETION.policy_steps + 1)
    assert not same(messages.Generated(COMPLETION), messages.Generated(other))
    assert not same(np.zeros(2, np.int32), np.zeros(2, np.int64))


def test_columns_do_not_travel():
    request = messages.without_columns(GenerationRequest("r", PROMPT, 0, SAMPLING))
    assert not request.prompt.columns
    assert request.prompt.model_inputs is PROMPT.model_inputs


def test_a_chunk_whose_arrays_do_not_agree_is_no_message():
    bad = dataclasses.replace(CHUNK)
    object.__setattr__(bad, "token_ids", CHUNK.token_ids[:1])
    with pytest.raises((msgspec.ValidationError, ValueError), match="has arrays of the shapes"):
        FROM_WORKER.decode(encode(messages.Progress(((1, bad),))))


def test_received_arrays_can_be_written():
    received = FROM_WORKER.decode(encode(messages.Reply(1, messages.Generated(COMPLETION))))
    received.body.completion.token_ids[0] = 7


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.array([object()]), "dtype object"), (np.array(["a"]), "dtype <U1"), (object(), "type object")],
)
def test_what_is_no_plain_data_is_refused_before_it_is_sent(value, what):
    spec = EngineSpec("x", "m", options={"value": value})
    with pytest.raises(errors.BackendRejected, match=f"Start cannot be sent.*{what}"):
        encode(messages.Start(spec, (), 1.0, 1.0))


def test_an_array_of_objects_is_not_made_from_bytes():
    array = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|O", (1,), b"12345678")))
    with pytest.raises(ValueError, match="array of dtype object"):
        FROM_WORKER.decode(
            msgspec.msgpack.encode(
                {"type": "Reply", "number": 1, "body": {"type": "Logprobs", "values": array}}
            )
        )


def test_something_else_in_the_place_of_an_array_is_refused():
    with pytest.raises(msgspec.ValidationError, match="ndarray"):
        FROM_WORKER.decode(
            msgspec.msgpack.encode(
                {"type": "Reply", "number": 1, "body": {"type": "Logprobs", "values": [1.0]}}
            )
        )


@pytest.mark.parametrize(
    "kind", [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
)
def test_every_error_of_ours_arrives_as_what_it_is(kind):
    error = messages.ErrorRecord.of(kind("it was refused")).error("worker-1")
    assert type(error) is kind
    assert str(error) == "worker 'worker-1': it was refused"


def test_a_foreign_error_is_named_and_counts_as_unavailable():
    error = messages.ErrorRecord.of(ZeroDivisionError("division by zero")).error("worker-1")
    assert type(error) is errors.BackendUnavailable
    assert str(error) == "worker 'worker-1': ZeroDivisionError: division by zero"


def test_lost_tokens_travel_with_the_error():
    lost = errors.BackendTimeout("late").losing(12)
    assert messages.ErrorRecord.of(lost).error("w").lost_tokens == 12


def test_a_name_that_is_no_error_of_ours_makes_none():
    assert type(messages.ErrorRecord("annotations", "x").error("w")) is errors.BackendUnavailable
