"""The code in docs/*/rewards.md runs, registers what it says, and is the same in both languages."""

import re
import sys
import types
from pathlib import Path

import pytest

from swift_rlx.rewards import REWARDS, resolve_reward

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(language):
    text = (DOCS / language / "rewards.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_code_of_the_page_runs(language, monkeypatch):
    monkeypatch.setattr(REWARDS, "_registered", {})
    page = types.ModuleType("page_on_rewards")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    exec("\n".join(blocks(language)), page.__dict__)
    page.test_solved()
    assert set(REWARDS._registered) == {"short_answer", "solved", "shortest_wins", "one_tweet", "judged"}
    assert resolve_reward("solved").spec.version == "2"
    assert resolve_reward("one_tweet").build()("x" * 280) == 1.0


def test_both_languages_show_the_same_code():
    assert blocks("en") == blocks("zh")
