"""Files of rows that no run can be made of, told before the model is looked at."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import arguments

from swift_rlx.errors import ConfigError
from swift_rlx.integration import data_files
from swift_rlx.integration.data_files import check_data_files

ROW = '{"messages": [{"role": "user", "content": "Say 1"}]}\n'


def check(path: Path, text: str, **values: Any) -> None:
    path.write_text(text, encoding="utf-8")
    check_data_files(SimpleNamespace(dataset=[f"{path}#7"], val_dataset=[], cached_dataset=[], **values))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", ROW),
        ("rows.jsonl", f"\n{ROW}\n\n{ROW.strip()}"),
        ("rows.jsonl", f"\ufeff{ROW}"),
        ("rows.jsonl", '{"text": "a\ttab"}\r\n{"text": NaN}\r\n'),
        ("rows.jsonl", '{"a": 1} {"a": 2}\n{\n  "a": 3\n}\n'),
        ("rows.json", f"[{ROW},{ROW}]"),
        ("rows.json", '[\n  {"a": 1},\n  {"a": 2}\n]\n'),
        ("rows.json", ROW),
        ("rows.csv", "messages\n"),
        ("rows.txt", "{ no JSON\n"),
    ],
)
def test_what_ms_swift_reads_is_let_through(name: str, text: str, tmp_path: Path) -> None:
    check(tmp_path / name, text)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.txt"])
def test_an_empty_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^the data set {tmp_path}/{name} is empty; give a file with"):
        check(tmp_path / name, "")


@pytest.mark.parametrize("text", ["\n \n", "[]\n", "\ufeff\n"])
def test_a_file_without_rows_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl has no rows; give a file with at least one$"):
        check(tmp_path / "rows.jsonl", text)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (f'{ROW}{ROW}{{"messages": [\n{ROW}', 3, r"Expecting value \(column 15\)"),
        (f'{{"messages": "a" "b"}}\n{ROW}', 1, r"Expecting ',' delimiter \(column 18\)"),
        (f"{ROW}\n{ROW}{ROW[:20]}", 4, r"Unterminated string|Expecting"),
        (f"{ROW}hello\n{ROW}", 2, r"Expecting value \(column 1\)"),
        (f'{ROW}"hello"\n', 2, 'it is "hello"'),
        ("[\n" + '{"a": 1},\n' + '{"a": 2\n' + "]\n", 4, "Expecting ',' delimiter"),
    ],
)
def test_a_broken_line_is_named_with_its_file(text: str, line: int, why: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"^line {line} of the data set {tmp_path}/rows.jsonl is no row: ({why}).*; give"
    ) as caught:
        check(tmp_path / "rows.jsonl", text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [ROW * 3, f"[{','.join([ROW] * 3)}]"])
def test_of_a_large_file_the_beginning_is_looked_at(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "MOST_CHARACTERS", len(ROW) + 9)
    check(tmp_path / "rows.jsonl", f"{text}broken")
    with pytest.raises(ConfigError, match="line 1 of the data set"):
        check(tmp_path / "rows.jsonl", f"broken\n{text}")


def test_the_command_tells_before_the_model_is_looked_at(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from swift import RLHFArguments

    rows = write_rows(16)
    rows.write_text(rows.read_text(encoding="utf-8") + "{broken\n", encoding="utf-8")
    options = {"rlhf_type": "rloo", "reward_funcs": ["format"], "report_to": ["none"], "model": "no/such"}
    with pytest.raises(ConfigError, match=r"line 17 of the data set .*rows.jsonl is no row"):
        RLHFArguments(**arguments(tiny_model, rows, tmp_path / "out", **options))
