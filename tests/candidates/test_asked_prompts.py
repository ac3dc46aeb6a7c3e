"""Prompts of files: which forms they have, what identifies them, and errors that name the row."""

from __future__ import annotations

import json

import pytest

from swift_rlx.candidates import PromptColumns, read_prompts
from swift_rlx.errors import StoreError

QUESTION = [{"role": "user", "content": "2+2?"}]


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(tmp_path, *rows, system=None, **columns):
    return read_prompts([jsonl(tmp_path / "p.jsonl", *rows)], PromptColumns(**columns), system)


def test_text_messages_and_a_conversation_with_its_answer_are_the_same_prompt(tmp_path):
    answered = [*QUESTION, {"role": "assistant", "content": "4"}]
    rows = [
        {"prompt": "2+2?", "solution": "4"},
        {"messages": QUESTION},
        {"messages": answered, "id": 7, "level": None},
    ]
    found = asked(tmp_path, *rows)
    assert len({one.index for one in found}) == 1
    assert [one.key for one in found] == [(epoch, found[0].index) for epoch in range(3)]
    assert [one.place for one in found] == [0, 1, 2]
    assert found[0].columns == {"solution": "4", "messages": QUESTION}
    assert found[2].prompt_id == "7"
    assert found[2].messages == QUESTION
    assert 0 <= found[0].index < 2**63


def test_columns_of_other_names_and_a_system_prompt(tmp_path):
    rows = [
        {"question": "2+2?", "key": "a", "answer": "4"},
        {"question": [{"role": "system", "content": "own"}, *QUESTION]},
    ]
    first, second = asked(tmp_path, *rows, system="Be brief.", prompt="question", id="key")
    assert first.messages == [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert first.columns == {"key": "a", "answer": "4", "messages": first.messages}
    assert (first.prompt_id, second.prompt_id) == ("a", "")
    assert second.messages[0]["content"] == "own"
    assert first.index != asked(tmp_path, rows[0], prompt="question")[0].index


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "q"},
            "line 2: it has no prompt in a column prompt or messages; its columns are question",
        ),
        ({"prompt": 3}, "its prompt 3 is neither text nor messages"),
        (
            {"messages": [{"role": "assistant", "content": "4"}]},
            "its messages are an answer without a prompt",
        ),
        (
            {"prompt": "what is it?", "images": ["a.png"]},
            "it has images, and candidates are generated for prompts",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "it has content that is no text"),
    ],
)
def test_a_row_that_is_no_prompt_of_text_is_named(tmp_path, row, message):
    with pytest.raises(StoreError, match=message):
        asked(tmp_path, {"prompt": "fine"}, row)


def test_a_file_without_prompts_is_refused(tmp_path):
    with pytest.raises(StoreError, match="has no prompt"):
        asked(tmp_path)
