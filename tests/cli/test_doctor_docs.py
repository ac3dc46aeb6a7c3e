"""docs/*/doctor.md is complete: every section, every check that can fail, every key of the JSON form."""

import ast
import inspect
import json

import pytest
from doc_pages import LANGUAGES, read, tables
from doctor_facts import environment, probe, reward

from swift_rlx.cli import diagnosis, hook_checks
from swift_rlx.cli.environment import PACKAGES


def _first_column(table):
    return {name.strip("`") for row in table[1:] for name in row[0].replace("、", ", ").split(", ")}


def _checks_that_can_fail():
    """The first argument of every call of `fail`; the packages are named at run time."""
    names = set(PACKAGES)
    for module in (diagnosis, hook_checks):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "fail":
                names |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    return names


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_says_what_to_do_for_every_check_that_can_fail_and_no_other(language):
    _, remedies, _ = tables(read(language, "doctor"))
    assert _first_column(remedies) == _checks_that_can_fail()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_lists_the_sections_with_their_keys(language):
    sections, _, _ = tables(read(language, "doctor"))
    report = diagnosis.diagnose(environment(), probe())
    titles = {
        section.title.removesuffix(" (--reward_funcs)"): f"`{section.key}`" for section in report.sections
    }
    assert {row[0]: row[1] for row in sections[1:]} == titles


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_names_the_keys_of_the_json_form(language):
    text = read(language, "doctor")
    content = json.loads(diagnosis.diagnose(environment(), probe(rewards=[reward("x")])).as_json())
    [listed] = content["sections"]["rewards"]
    missing = [key for key in (*content, *listed, *listed["data"]) if f"`{key}`" not in text]
    assert not missing
