"""What servers say, for fuzzing: right answers, damaged in their meaning or in their bytes; any JSON; any bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from swift_rlx.backends.remote_answer import Labels
from swift_rlx.types import PolicyVersion

LABELS, SERVED = Labels("cafe"), PolicyVersion(0, 3)
TEXT = np.arange(4, dtype=np.int32)

JUNK: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**40, 1e308, -1e308, float("nan"), float("inf"), -0.0, 0.5, "", "stop",
    "default", "abort", "\ud800", "x" * 300, [], {}, [[]], [None], {"": {}}, {"error": {"error": "x"}}, "0",
    json.loads("[" * 60 + "]" * 60),
]  # fmt: skip
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
Answer = list[tuple[int, float]]
answers = st.lists(st.tuples(st.integers(0, 15), st.floats(-20, 0)), min_size=1, max_size=6)
deep = st.one_of(
    st.integers(1, 20_000).map(lambda depth: b"[" * depth),
    st.integers(1, 3_000).map(lambda depth: b'{"error":' * depth + b"1" + b"}" * depth),
)


def of_vllm(answer: Answer, begin: int = 0) -> dict[str, Any]:
    """An event with the tokens from place `begin` on, the last of the answer."""
    content = [{"token_id": token, "logprob": logprob, "top_logprobs": []} for token, logprob in answer]
    half = len(answer) // 2
    spans = [
        {"version": LABELS.of(SERVED), "start": 0, "end": half},
        {"version": LABELS.of(PolicyVersion(0, 4)), "start": half, "end": len(answer)},
    ]
    choice = {
        "token_ids": [token for token, _ in answer[begin:]],
        "logprobs": {"content": content[begin:]},
        "finish_reason": "stop",
        "weight_versions": spans,
    }
    return {"choices": [choice], "prompt_logprobs": None}


def of_sglang(answer: Answer, begin: int = 0) -> dict[str, Any]:
    """The same, with all tokens."""
    meta = {
        "finish_reason": {"type": "length"},
        "weight_version": LABELS.of(SERVED),
        "completion_tokens": len(answer),
        "output_token_logprobs": [[logprob, token, None] for token, logprob in answer],
        "output_top_logprobs": [[[logprob, token, None] for token, logprob in answer]],
        "input_token_logprobs": [[-1.0, token, None] for token in TEXT.tolist()],
    }
    return {"meta_info": meta}


def events_of(answer: Answer, of: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """An answer token by token."""
    events = []
    for end in range(1, len(answer) + 1):
        event = copy.deepcopy(of(answer[:end], end - 1))
        if end < len(answer):
            part = event["choices"][0] if "choices" in event else event["meta_info"]
            part |= {"finish_reason": None, "weight_versions": None}
        events.append(event)
    return events


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    for key in value.keys() if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def damaged(value: Any, chance: random.Random) -> bytes:
    """The answer as JSON, with up to two faults in its meaning and, every other time, some in its bytes."""
    value = [copy.deepcopy(value)]
    for _ in range(chance.randrange(3)):
        container, key = chance.choice(list(places(value)))
        kind = chance.randrange(4)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(chance.choice(JUNK))
        if not value:
            return b"{}"
    return torn(written(value[0]), chance)


def torn(stream: bytes, chance: random.Random) -> bytes:
    """With faults in its bytes, half of the time."""
    body = bytearray(stream)
    for _ in range(chance.choice([0, 0, 0, 1, 2, 8])):
        start = chance.randrange(len(body) + 1)
        body[start : start + chance.randrange(6)] = chance.choice(
            [b"", chance.randbytes(3), b'"', b"}", b"9" * 30, b"\n\n", b"data: ", b"\r"]
        )
    return bytes(body)


def damaged_stream(events: list[dict[str, Any]], chance: random.Random) -> bytes:
    """Server-sent events, some of them damaged, missing, doubled or in another order, and then torn."""
    bodies = [damaged(one, chance) if chance.random() < 0.2 else written(one) for one in events]
    for _ in range(chance.choice([0, 0, 1, 2])):
        at = chance.randrange(len(bodies) + 1)
        bodies[at:at] = [
            chance.choice([*bodies, b"[DONE]", b'{"error": {"code": 7}}', b'{"error": "x"}', b""])
        ]
        del bodies[chance.randrange(len(bodies))]
    stream = b"".join(b"data: " + one + b"\n\n" for one in [*bodies, b"[DONE]"])
    return torn(stream, chance)


def written(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


others = st.one_of(st.binary(max_size=64), anything.map(written), deep)
