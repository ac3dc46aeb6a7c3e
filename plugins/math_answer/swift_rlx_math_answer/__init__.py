"""A reward for mathematics: 1 where the completion's answer is equal to the row's solution, else 0."""

import re

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException

__all__ = ["math_answer"]

TIME_LIMIT_S = 5
"""For reading an answer, and for comparing it."""
MAX_CHARACTERS = 20_000
"""Of the end of a completion: there the answer stands."""
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TARGETS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def math_answer(completion: str, solution: str | None, **columns: object) -> float | None:
    """Whether the answer is equal to `solution` as mathematics (1/2, 0.5, \\frac{1}{2}): 1.0 or 0.0.

    The answer is what stands in the last <answer> tags or \\boxed{}, else the last expression. None, so that the row
    does not train, where the solution cannot be read, and where comparing takes longer than 5 s: neither says anything
    about the completion. A completion without an answer gets 0.

    math-verify limits its time by an alarm signal, which only works in the main thread; swift-rlx notices and calls the
    reward there, or in a worker process of a reward service.
    """
    gold = _read(solution) if solution and solution.strip() else []
    if not gold:
        return None
    try:
        answer = _read(completion[-MAX_CHARACTERS:])
        if not answer:
            return 0.0
        return float(verify(gold, answer, timeout_seconds=TIME_LIMIT_S, raise_on_error=True))
    except TimeoutException:
        return None
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError, NotImplementedError):
        return 0.0  # sympy cannot compare what the completion says with a readable solution


def _read(text: str) -> list[object]:
    """The expressions that the text's answer can be read as; none where there is no answer."""
    tagged = _TAGGED.findall(text)
    found: list[object] = parse(
        _in_math(tagged[-1]) if tagged else _in_math(text),
        extraction_config=_TARGETS,
        parsing_timeout=TIME_LIMIT_S,
    )
    return found


def _in_math(text: str) -> str:
    r"""A short text of LaTeX without delimiters, such as `\frac{1}{2}`, is put between some."""
    bare = text.strip()
    has_delimiters = any(mark in bare for mark in ("$", r"\(", r"\[", r"\boxed"))
    return f"${bare}$" if "\\" in bare and not has_delimiters and "\n" not in bare else text
