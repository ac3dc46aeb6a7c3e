import time

import pytest
from swift_rlx_comment_bonus import comment_bonus

from swift_rlx.testing import Example, check_reward


def fenced(code, language="python"):
    return f"Here it is:\n\n```{language}\n{code}\n```\nDone. # not code // at all\n"


def test_it_is_a_reward():
    check_reward(
        comment_bonus,
        examples=[
            Example("", expected=0.0),
            Example("# add one\nx = x + 1", expected=0.5),
            Example(fenced("x = 1  # one\ny = 2"), expected=0.5),
        ],
    )


@pytest.mark.parametrize(
    ("code", "language", "score"),
    [
        ("# a\nx = 1\ny = 2\nz = 3", "python", 1 / 4),
        ("x = 7 // 2\ny = 1", "python", 0.0),
        ("url = 'http://x.org/#top'", "python", 0.0),
        ('s = "a \\" # b"  # real', "python", 1.0),
        ("\n\n# a\n\nx = 1\n\n", "python", 1 / 2),
        ("x = 1  #", "python", 0.0),
        ("##########\nx = 1", "python", 0.0),
        ("# 加一\nx = x + 1", "python", 1 / 2),
        ("#!/usr/bin/env python\nx = 1", "python", 0.0),
        ('def f():\n    """Add.\n\n    One.\n    """\n    return 1', "python", 2 / 5),
        ("def f():\n    '''Add.'''\n    return 1", "py", 1 / 3),
        ('text = """\n# not a comment\n"""', "python", 0.0),
        ("int x = 1; // one\nint y;", "c", 1 / 2),
        ('#include <stdio.h>\nchar *u = "http://x";', "c", 0.0),
        ("/* one\n * two\n */\nint x;", "java", 2 / 4),
        ("/* never closed\nint x;", "java", 0.0),
        ("const u = `http://\n// no`;\nf(); /* yes */", "ts", 1 / 3),
        ("echo $# ${#name}\nls # list", "bash", 1 / 2),
        ("-- all\nSELECT 1 - -1;", "sql", 1 / 2),
        ("<!-- head -->\n<p>", "html", 1 / 2),
        ("<?php # one\n#[Attribute]\nf(); // two", "php", 2 / 3),
    ],
)
def test_comments_are_told_from_code_in_each_language(code, language, score):
    assert comment_bonus(fenced(code, language)) == pytest.approx(score)


def test_an_unnamed_block_is_guessed_from_its_text():
    assert comment_bonus(fenced("int main() {\n  return 0; // fine\n}", "")) == pytest.approx(1 / 3)
    assert comment_bonus(fenced("def f():\n    return 7 // 2  # three", "")) == pytest.approx(1 / 2)


def test_without_a_fence_the_whole_completion_is_code():
    assert comment_bonus("# add one\nx = x + 1\n") == 0.5


def test_all_blocks_count_together_and_data_is_no_code():
    text = fenced("# a\nx = 1") + fenced("y = 2\nz = 3") + fenced('{"a": 1}', "json")
    assert comment_bonus(text) == pytest.approx(1 / 4)
    assert comment_bonus(fenced('{"a": 1}', "json")) == 0.0


def test_an_unclosed_block_reaches_to_the_end():
    assert comment_bonus("So:\n~~~python\n# a\nx = 1") == 0.5


def test_a_longer_fence_holds_a_shorter_one():
    assert comment_bonus("````python\n# a ``` b\n```\nx = 1\n````") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "text", ["", "  \n\t\n", "```python\n```", "# only\n# comments", "```c\n/* only */\n```"]
)
def test_no_code_no_reward(text):
    assert comment_bonus(text) == 0.0


@pytest.mark.parametrize(
    "piece", ['\\"', '"', "'", "`", "/*", "#", '"""', "\\", "/", "<!--", "`\\", "'\\", "~~~\n", "```\n"]
)
@pytest.mark.parametrize("language", ["python", "js"])
def test_the_time_grows_with_the_length_and_not_faster(piece, language):
    text = f"```{language}\n" + piece * 60_000
    start = time.monotonic()
    comment_bonus(text)
    assert time.monotonic() - start < 10  # quadratic matching takes minutes
