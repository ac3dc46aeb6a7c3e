"""The report as data: exit code, JSON, text."""

import json

import pytest

from swift_rlx.cli.checks import Report, Section, fail, ok, warn


def _report(*checks):
    return Report("1.2.3", (Section("one", "First", checks[:1]), Section("two", "Second", checks[1:])))


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([ok("a", "fine"), ok("b", "fine")], 0),
        ([ok("a", "fine"), warn("b", "old", "renew it")], 0),
        ([fail("a", "gone", "bring it back"), ok("b", "fine")], 1),
        ([warn("a", "old", "renew it"), fail("b", "gone", "bring it back")], 1),
    ],
)
def test_the_exit_code_is_1_exactly_if_a_check_fails(checks, code):
    assert _report(*checks).exit_code == code
    assert json.loads(_report(*checks).as_json())["exit_code"] == code


def test_json_has_the_documented_keys():
    content = json.loads(_report(ok("a", "fine"), warn("b", "old", "renew it", version="1")).as_json())
    assert content == {
        "swift_rlx": "1.2.3",
        "can_run_rloo": True,
        "exit_code": 0,
        "sections": {
            "one": [{"name": "a", "status": "OK", "detail": "fine", "remedy": None}],
            "two": [
                {
                    "name": "b",
                    "status": "WARN",
                    "detail": "old",
                    "remedy": "renew it",
                    "data": {"version": "1"},
                }
            ],
        },
    }


def test_text_is_aligned_and_says_what_to_do():
    text = _report(ok("short", "fine"), fail("a longer name", "gone", "bring it back")).as_text()
    assert text == (
        "First\n"
        "  OK    short          fine\n"
        "\n"
        "Second\n"
        "  FAIL  a longer name  gone\n"
        "                       -> bring it back\n"
        "\n"
        "`swift rlhf --rlhf_type rloo` cannot run here: a longer name failed\n"
    )


def test_text_counts_the_warnings():
    text = _report(warn("a", "old", "renew it"), ok("b", "fine")).as_text()
    assert text.endswith("`swift rlhf --rlhf_type rloo` can run here, 1 warning\n")
    text = _report(ok("a", "fine"), ok("b", "fine")).as_text()
    assert text.endswith("`swift rlhf --rlhf_type rloo` can run here\n")


def test_long_lines_are_wrapped_under_their_column_and_paths_are_never_broken():
    path = "/a/very/long/path-with-hyphens/" * 4
    lines = (
        _report(ok("a", f"some words before {path} and some after it"), ok("b", "x")).as_text(60).splitlines()
    )
    assert lines[1:4] == [
        "  OK    a  some words before",
        f"           {path}",
        "           and some after it",
    ]


def test_an_empty_detail_leaves_the_name():
    assert "  OK    a" in _report(ok("a", ""), ok("b", "x")).as_text().splitlines()
