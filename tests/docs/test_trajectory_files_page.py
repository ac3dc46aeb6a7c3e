"""docs/*/trajectory_files.md is true: its columns, entries and snippets are those of the code."""

from pathlib import Path
from typing import Any

import pytest
from doc_pages import LANGUAGES, blocks, read, tables
from stored_groups import plain_group

from swift_rlx.scheduler.journal_entries import Admitted, Dropped, PickedUp, Scored, encode
from swift_rlx.scheduler.journal_segments import ENTRIES, INCARNATION, NAME
from swift_rlx.store import FORMAT, ShardWriter
from swift_rlx.store.schema import columns
from swift_rlx.types import DropReason

TYPES = {"double": "float64", "float": "float32", "string": "string", "int32": "int32", "int64": "int64"}


def shown(column: Any) -> str:
    if column.name == "breakdown":
        return f"list of ({', '.join(part.name for part in column.type.value_type)})"
    kind = str(column.type)
    if kind.startswith("list"):
        inner = str(column.type.value_type)
        kind = f"list of {TYPES.get(inner, inner)}"
    return TYPES.get(kind, kind) + (" or null" if column.nullable else "")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_has_every_column_with_its_type(language: str) -> None:
    [table] = [each for each in tables(read(language, "trajectory_files")) if each[1][0] == "`prompt_epoch`"]
    assert [row[:2] for row in table[1:]] == [[f"`{column.name}`", shown(column)] for column in columns()]
    assert all(row[2] for row in table)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_has_every_entry_and_key_of_the_journal(language: str) -> None:
    text = read(language, "trajectory_files")
    entries = [
        Admitted(0, 1, 2),
        Scored(plain_group(0)),
        Dropped(0, DropReason.NO_SPREAD, 1),
        PickedUp(1, (0,), 1, True),
    ]
    for entry in entries:
        kind = encode([entry])[1].split('"')[1]
        assert f'`["{kind}"' in text
    for key in (NAME, ENTRIES, INCARNATION, "format", "note", "crc32"):
        assert f"`{key}`" in text
    assert f" {FORMAT}" in text


def test_both_languages_show_the_same() -> None:
    english, chinese = (read(language, "trajectory_files") for language in LANGUAGES)
    assert blocks(english, "python") == blocks(chinese, "python")
    assert [len(table) for table in tables(english)] == [len(table) for table in tables(chinese)]


def test_the_snippets_run(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a.arrow")
    writer.add([plain_group(0, tokens=4), plain_group(1, tokens=9)])
    writer.close()
    page: dict[str, Any] = {"__name__": "page"}
    for block in blocks(read("en", "trajectory_files"), "python"):
        exec(compile(block, "docs/en/trajectory_files.md", "exec"), page)
    assert page["rewards"](writer.path) == [1.0] * 4
    assert page["longest_answer"](writer.path) == 9
