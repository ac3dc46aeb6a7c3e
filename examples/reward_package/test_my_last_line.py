from my_last_line import last_line

from swift_rlx.testing import Example, check_reward


def test_last_line_is_a_reward():
    check_reward(
        last_line,
        examples=[
            Example("6 times 7 is\n42\n", {"solution": "42"}, expected=1.0),
            Example("42 is the answer", {"solution": "42"}, expected=0.0),
            Example("42", {"solution": None}, expected=None),
        ],
    )
