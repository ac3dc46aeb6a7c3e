"""What is told of a conversation, and which of its turns a second attempt takes over."""

import numpy as np

from swift_rlx.backends.progress import Draft
from swift_rlx.trainers.turns import Turns
from swift_rlx.types import Chunk, Completion, FinishReason

FIRST, SECOND, OTHER = (np.array(ids, np.int32) for ids in ([1, 2], [1, 2, 10, 11, 3], [1, 2, 10, 11, 4]))


def answer(*ids: int) -> Completion:
    numbers = np.array(ids, np.int32)
    return Completion(numbers, numbers * np.float32(-0.1), numbers * 0, FinishReason.STOP)


def part(begin: int, *ids: int) -> Chunk:
    numbers = np.array(ids, np.int32)
    return Chunk(begin, numbers, numbers * np.float32(-0.1), numbers * 0, start_s=1.0)


def broken_off() -> Draft:
    """A conversation whose worker died in its second turn: 10 11 | 20 21."""
    draft = Draft()
    turns = Turns(None, draft.add)
    assert turns.begin(FIRST) is None
    turns.tell(part(0, 10))
    turns.end(answer(10, 11))
    assert turns.begin(SECOND) is None
    turns.tell(part(0, 20, 21))
    return draft


def ids(draft: Draft) -> list[int]:
    whole = draft.whole()
    return [] if whole is None else whole.token_ids.tolist()


def test_the_turns_of_a_conversation_are_told_end_to_end() -> None:
    draft = broken_off()
    assert ids(draft) == [10, 11, 20, 21]
    whole = draft.whole()
    assert whole is not None
    assert [(one.begin, one.end, one.finish_reason) for one in whole.turns] == [
        (0, 2, FinishReason.STOP),
        (2, None, None),
    ]


def test_a_conversation_says_when_it_is_with_its_environment() -> None:
    told: list[Chunk] = []
    turns = Turns(None, told.append)
    turns.begin(FIRST)
    assert told[-1].turns[-1].finish_reason is None
    turns.end(answer(10, 11))
    assert told[-1].turns[-1].finish_reason is FinishReason.STOP
    turns.begin(SECOND)
    assert told[-1].turns[-1].finish_reason is None


def test_the_same_conversation_is_taken_over_and_its_last_turn_goes_on() -> None:
    draft = broken_off()
    again = Turns(draft.whole(), draft.add)
    first = again.begin(FIRST)
    assert first is not None
    assert (first.part.token_ids.tolist(), first.finish_reason) == ([10, 11], FinishReason.STOP)
    again.end(answer(10, 11), first)
    second = again.begin(SECOND)
    assert second is not None
    assert (second.part.token_ids.tolist(), second.part.begin, second.finish_reason) == ([20, 21], 0, None)
    assert ids(draft) == [10, 11, 20, 21], "nothing of it was told again"
    again.tell(part(2, 22))
    again.end(answer(20, 21, 22, 23), second)
    assert ids(draft) == [10, 11, 20, 21, 22, 23]


def test_where_the_environment_says_something_else_a_new_conversation_begins() -> None:
    draft = broken_off()
    again = Turns(draft.whole(), draft.add)
    first = again.begin(FIRST)
    again.end(answer(10, 11), first)
    assert again.begin(OTHER) is None
    assert ids(draft) == [10, 11]
    again.end(answer(30, 31))
    assert ids(draft) == [10, 11, 30, 31]
    assert again.begin(SECOND) is None, "what followed the other turn is of no use"


def test_a_worker_that_begins_a_turn_anew_replaces_what_was_there_of_it() -> None:
    draft = broken_off()
    again = Turns(draft.whole(), draft.add)
    again.end(answer(10, 11), again.begin(FIRST))
    second = again.begin(SECOND)
    again.end(answer(40, 41, 42), second)  # nothing was told before its end
    assert ids(draft) == [10, 11, 40, 41, 42]


def test_a_finished_turn_that_was_cut_short_since_is_only_a_part() -> None:
    draft = broken_off()
    draft.cut(1)
    again = Turns(draft.whole(), draft.add)
    first = again.begin(FIRST)
    assert first is not None
    assert (first.part.token_ids.tolist(), first.finish_reason) == ([10], None)
