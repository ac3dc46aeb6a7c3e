"""docs/*/trajectory_store.md is true: its commands are accepted, its columns, meanings and snippet are the code's."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from doc_pages import LANGUAGES, blocks, flags, parser, read, swift_commands, tables, without_downloads
from stored_groups import filled, stored_group

from swift_rlx.cli.main import build_parser
from swift_rlx.integration.store_fields import FIELD_DEFAULTS
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.log_rows import MEANINGS
from swift_rlx.store.row_columns import row_schema, text_schema
from swift_rlx.store.schema import columns
from swift_rlx.trainers.stored_training import SHOWN_APART


def table_with(language: str, cell: str) -> list[list[str]]:
    [table] = [each for each in tables(read(language, "trajectory_store")) if each[1][0] == cell]
    return table[1:]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_command_of_the_page_is_accepted(language: str) -> None:
    *commands, _ = blocks(read(language, "trajectory_store"), "bash")
    lines = "".join(commands).strip().splitlines()
    assert len(lines) == 8
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "swift-rlx"
        build_parser().parse_args(arguments)


def test_the_training_of_the_page_is_accepted(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    [words] = swift_commands(read("en", "trajectory_store"))
    args = parser()(without_downloads(words, tiny_model, write_rows(16), tmp_path))
    assert (args.trajectory_store, args.offline_ratio) == ("answers.store", 0.5)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_flags_and_metrics_of_the_page_are_those_of_the_code(language: str) -> None:
    page = read(language, "trajectory_store")
    named = {
        name for row in table_with(language, "`--offline_ratio`, `--online_every`") for name in flags(row[0])
    }
    assert named == set(FIELD_DEFAULTS) - {"trajectory_store", "offline_objective"}
    for name in SHOWN_APART:
        assert f"`stored/{name.rpartition('/')[2]}`" in page


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_meaning_and_column_is_on_the_page(language: str) -> None:
    assert [row[0] for row in table_with(language, "`prompt`")] == [f"`{name}`" for name in MEANINGS]
    table = table_with(language, "`logprobs`")
    explained = " ".join(cell for row in table for cell in row)
    for name in set(row_schema(True).names) - set(columns().names):
        assert f"`{name}`" in explained, name
    for name in text_schema().names:
        assert f"`{name}`" in read(language, "trajectory_store")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_files_of_the_page_are_those_of_a_store(language: str, tmp_path: Path) -> None:
    filled(TrajectoryStore.create(tmp_path), [stored_group(1)])
    [first, *_] = [row[0].strip("`") for row in table_with(language, "`store.json`")]
    assert (tmp_path / first).is_file()
    for pattern in ("manifest/00000001.json", "shards/*.rows.arrow", "shards/*.texts.arrow"):
        assert len(list(tmp_path.glob(pattern))) == 1


def test_both_languages_show_the_same() -> None:
    english, chinese = (read(language, "trajectory_store") for language in LANGUAGES)
    for kind in ("python", "bash"):
        assert blocks(english, kind) == blocks(chinese, kind)
    assert [[row[0] for row in each[1:]] for each in tables(english)] == [
        [row[0] for row in each[1:]] for each in tables(chinese)
    ]


def test_the_snippet_runs(tmp_path: Path) -> None:
    filled(TrajectoryStore.create(tmp_path), [stored_group(number, (1.0, 0.0)) for number in range(4)])
    page: dict[str, object] = {}
    [snippet] = blocks(read("en", "trajectory_store"), "python")
    exec(compile(snippet, "docs/en/trajectory_store.md", "exec"), page)
    assert page["mean_reward"](tmp_path, 3) == 0.5  # type: ignore[operator]
