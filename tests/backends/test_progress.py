"""What was told of an answer, put together."""

from __future__ import annotations

import numpy as np
import pytest

from swift_rlx.backends.progress import Draft, beginning, joined, sampled_part, section, shared_tokens
from swift_rlx.types import Chunk, Completion, FinishReason, Turn


def chunk(begin, *ids, step=0, **fields):
    return Chunk(
        begin, np.array(ids, np.int32), np.full(len(ids), -1.0, np.float32), np.full(len(ids), step), **fields
    )


def ids(one):
    return one.token_ids.tolist()


def test_chunks_become_one_with_the_times_of_the_first_and_the_turns_of_the_last():
    draft = Draft()
    assert draft.whole() is None
    assert draft.add(chunk(0)) == 0  # says only that the answer is there
    assert draft.add(chunk(0, 7, 8, start_s=1.0, first_token_s=2.0)) == 0
    assert draft.add(chunk(2, 9, step=3, turns=(Turn(0, 5),))) == 0
    whole = draft.whole()
    assert (ids(whole), whole.policy_steps.tolist(), whole.begin) == ([7, 8, 9], [0, 0, 3], 0)
    assert (whole.start_s, whole.first_token_s, whole.turns) == (1.0, 2.0, (Turn(0, 5),))
    assert draft.whole() is whole


def test_a_worker_that_begins_anew_replaces_what_was_told():
    draft = Draft()
    draft.add(chunk(0, 1, 2, 3))
    draft.add(chunk(3, 4, 5))
    assert draft.add(chunk(2, 8, 9)) == 3
    assert ids(draft.whole()) == [1, 2, 8, 9]
    assert draft.add(chunk(0, 6)) == 4
    assert (ids(draft.whole()), draft.num_tokens) == ([6], 1)


def test_what_leaves_a_gap_is_left_out():
    draft = Draft()
    draft.add(chunk(0, 1))
    assert draft.add(chunk(3, 9)) == 0
    assert ids(draft.whole()) == [1]


def test_a_part_that_begins_later_keeps_its_places():
    draft = Draft(4)
    draft.add(chunk(4, 1, 2))
    assert (draft.end, draft.num_tokens) == (6, 2)
    assert draft.add(chunk(3, 5)) == 2  # before all that it had
    assert (draft.begin, ids(draft.whole())) == (3, [5])


@pytest.mark.parametrize(("place", "left", "dropped"), [(5, 5, 0), (4, 4, 1), (2, 2, 3), (0, 0, 5)])
def test_tokens_are_cut_off_at_any_place(place, left, dropped):
    draft = Draft()
    draft.add(chunk(0, 1, 2, 3))
    draft.add(chunk(3, 4, 5))
    assert draft.cut(place) == dropped
    assert draft.num_tokens == left
    assert draft.cut(place) == 0


def test_sections_are_parts_by_place():
    whole = joined([chunk(2, 1, 2), chunk(4, 3)])
    assert (ids(beginning(whole, 4)), whole.begin, whole.end) == ([1, 2], 2, 5)
    part = section(whole, 3, 5)
    assert (part.begin, ids(part)) == (3, [2, 3])


@pytest.mark.parametrize("name", ["token_ids", "logprobs", "policy_steps"])
def test_answers_share_their_tokens_up_to_the_first_difference_of_any_kind(name):
    one, other = chunk(0, 1, 2, 3, 4), chunk(0, 1, 2, 3, 4, 5)
    assert shared_tokens(one, other) == 4
    getattr(other, name)[2] += 1
    assert shared_tokens(one, other) == shared_tokens(other, one) == 2


def test_of_a_conversation_the_tokens_of_the_policy_count():
    numbers = np.arange(4)
    answer = Completion(
        numbers, numbers * -1.0, numbers, FinishReason.STOP, 2, sampled=np.array([True, False, True, True])
    )
    part = sampled_part(answer)
    assert (ids(part), part.policy_steps.tolist(), part.incarnation) == ([0, 2, 3], [0, 2, 3], 2)


def test_a_chunk_whose_arrays_differ_in_length_is_refused():
    with pytest.raises(ValueError, match="a chunk from place 0 on has arrays of the shapes"):
        Chunk(0, np.zeros(2, np.int32), np.zeros(1, np.float32), np.zeros(2, np.int32))
