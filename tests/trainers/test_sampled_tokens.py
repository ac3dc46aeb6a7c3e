"""Sampled tokens are found in a conversation by their turns, and nothing else trains."""

from swift_rlx.trainers.sampled_tokens import sampled_places

END = 2
#       prompt        turn 1, cut     marker   user     turn 2
IDS = [1, 10, 11, 5, 6, 7, END, 3, 1, 12, 3, 5, 6, END]
MASK = [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1]


def test_the_marker_that_the_template_added_is_not_sampled() -> None:
    assert sampled_places(IDS, MASK, [[5, 6, 7], [5, 6, END]], []) == [3, 4, 5, 11, 12, 13]


def test_tokens_that_the_environment_put_into_a_turn_are_not_sampled() -> None:
    mask = [0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert sampled_places(IDS, mask, [[5, 6, 7], [5, 6, END]], [[1, 0, 1], [1, 1, 1]]) == [3, 5, 11, 12, 13]


def test_a_conversation_that_was_encoded_otherwise_has_no_sampled_tokens() -> None:
    assert sampled_places(IDS, MASK, [[5, 6, 7], [5, 9, END]], []) == []
    assert sampled_places(IDS, MASK, [[10, 11], [5, 6, END]], []) == [], "a prompt is not a turn"
