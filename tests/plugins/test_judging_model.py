"""The judge with a real small model behind an OpenAI-compatible server: a grade, or a row that is unscored."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "judge"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWERS = ["Paris is the capital of France.", "Bananas are yellow."]


@pytest.fixture(scope="module")
def model() -> Any:
    from judging_model import SmallModel

    return SmallModel()


@pytest.fixture
def judged(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Scores of answers, the server's replies, and what the judge counted."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    from judging_model import JudgingServer
    from swift_rlx_judge import Judge, JudgeSettings

    async def ask(columns: dict[str, Any], **settings: Any) -> Any:
        async with JudgingServer(model) as server:
            judge = Judge(
                JudgeSettings(server.url, "SmolLM2-135M-Instruct", timeout_s=300, tries=1, **settings)
            )
            scores = await judge(ANSWERS, messages=[QUESTION] * len(ANSWERS), **columns)
            return scores, server.replies, judge.usage

    def run(columns: dict[str, Any] | None = None, **settings: Any) -> Any:
        return asyncio.run(asyncio.wait_for(ask(columns or {}, **settings), 500))

    return run


def check(scores: list[float | None], usage: Any, replies: list[str]) -> None:
    assert all(score is None or (math.isfinite(score) and 0 <= score <= 1) for score in scores)
    assert usage.requests == len(replies)
    assert usage.prompt_tokens > 100 * len(replies), "the prompt of the judge"
    assert usage.completion_tokens > 0


@pytest.mark.slow
def test_a_real_model_that_is_held_to_the_schema_grades_every_answer(judged: Any) -> None:
    scores, replies, usage = judged()
    check(scores, usage, replies)
    grades = sorted(json.loads(reply)["grade_a"] for reply in replies)
    assert (usage.ungraded, len(replies)) == (0, len(ANSWERS))
    assert sorted(10 * score for score in scores) == pytest.approx(grades)


@pytest.mark.slow
def test_a_real_model_sees_answer_and_reference_in_both_orders(judged: Any) -> None:
    scores, replies, usage = judged({"reference": ["It is Paris.", None]}, max_disagreement=10.0)
    check(scores, usage, replies)
    both = [json.loads(reply) for reply in replies if "grade_b" in reply]
    assert (len(both), len(replies)) == (2, len(ANSWERS) + 1)
    assert None not in scores


@pytest.mark.slow
def test_a_real_model_that_speaks_freely_gives_a_grade_or_leaves_the_row_unscored(judged: Any) -> None:
    scores, replies, usage = judged(structured=False, max_tokens=24)
    check(scores, usage, replies)
    assert scores.count(None) == usage.ungraded, "no grade is a row without a score, and never an error"
    assert len(replies) == len(ANSWERS)
