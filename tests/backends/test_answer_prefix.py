"""What vLLM is given of an answer that another worker began; no vLLM is needed for that."""

from __future__ import annotations

import numpy as np
import pytest

from swift_rlx.backends import GenerationRequest
from swift_rlx.backends.answer_prefix import seed_behind, text_before, usable_prefix
from swift_rlx.types import Chunk, Prompt, SamplingParams

PIECES = ["a", "b", "\n", "\n\n", "Q", "Q:", "\ufffd"]


def decode(ids):
    return "".join(PIECES[one] for one in ids)


def request(*ids, stop=()):
    count = len(ids)
    prefix = Chunk(0, np.array(ids, np.int32), np.full(count, -1.0, np.float32), np.zeros(count, np.int32))
    return GenerationRequest(
        "r", Prompt(0, np.array([9, 9], np.int32)), 0, SamplingParams(stop=stop), prefix=prefix
    )


@pytest.mark.parametrize(
    ("ids", "stop", "kept"),
    [
        ((0, 1, 2), (), 3),
        ((0, 1, 0), ("\n\nQ:",), 3),
        ((0, 1, 2), ("\n\nQ:",), 2),  # the stop string may have begun
        ((0, 2, 2), ("\n\nQ:",), 1),
        ((0, 3, 4), ("\n\nQ:",), 1),
        ((0, 2, 1), ("\n\nQ:",), 3),  # and has not gone on
        ((0, 1, 0), ("x", "ab"), 2),  # "a" may begin "ab"
        ((0, 2, 6), ("\n\nQ:",), 1),  # half a character hides nothing
        ((2,), ("\n\n",), 0),
    ],
)
def test_no_stop_string_begins_in_the_part_that_vllm_does_not_look_at(ids, stop, kept):
    prefix = usable_prefix(request(*ids, stop=stop), decode)
    assert (0 if prefix is None else prefix.num_tokens) == kept
    assert text_before(request(*ids, stop=stop), prefix).tolist() == [9, 9, *ids[:kept]]


def test_what_follows_has_a_seed_of_its_own():
    assert seed_behind(7, 0) == 7
    seeds = {seed_behind(seed, count) for seed in range(50) for count in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**31 for seed in seeds)
