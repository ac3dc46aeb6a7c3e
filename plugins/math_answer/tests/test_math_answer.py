import math_verify.errors
import pytest
import swift_rlx_math_answer
from swift_rlx_math_answer import math_answer

from swift_rlx.testing import Example, check_reward


def test_it_keeps_the_rules_of_a_reward():
    check_reward(
        math_answer,
        examples=[
            Example(r"So it is $\boxed{42}$.", {"solution": "42"}, expected=1.0),
            Example("It is 41.", {"solution": "42"}, expected=0.0),
            Example("It is 42.", {"solution": None}, expected=None),
        ],
        max_seconds=60,
    )


@pytest.mark.parametrize(
    ("completion", "solution", "score"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0), (r"$x = 3$", "3", 1.0), ("<answer>7</answer>", r"\boxed{7}", 1.0),
        ("First 5, then <answer>4</answer>, no: <answer>6</answer>", "6", 1.0),
        (r"\boxed{2\sqrt{2}}", r"$\sqrt{8}$", 1.0),
        (r"答案是 $\boxed{12}$。", "12", 1.0), (r"\boxed{1/3}", "0.3", 0.0), ("I do not know", "3", 0.0),
        ("", "3", 0.0),
        (r"\boxed{3}", "", None), (r"\boxed{3}", "  ", None), (r"\boxed{3}", "no number here", None),
        (r"\frac{3}{4}", r"\frac{6}{8}", 1.0),
    ],
)  # fmt: skip
def test_answers_are_compared_as_mathematics(completion, solution, score):
    assert math_answer(completion, solution) == score


def test_a_comparison_that_takes_too_long_says_nothing_about_the_completion(monkeypatch):
    def slow(*_, **__):
        raise math_verify.errors.TimeoutException("5 s")

    monkeypatch.setattr(swift_rlx_math_answer, "verify", slow)
    assert math_answer(r"\boxed{3}", "3") is None


def test_a_comparison_that_fails_is_a_wrong_answer(monkeypatch):
    def fails(*_, **__):
        raise ValueError("sympy")

    monkeypatch.setattr(swift_rlx_math_answer, "verify", fails)
    assert math_answer(r"\boxed{3}", "3") == 0.0
