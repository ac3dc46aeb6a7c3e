"""Files of rows that no run can be made of, told before the model is loaded, with the line."""

import json
import os
import re
from typing import Any

from swift_rlx.errors import ConfigError

DATA_FILES = (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".txt")
JSON_FILES = (".jsonl", ".json")
MOST_CHARACTERS = 64 << 20
"""So many characters of a file are read, in less than a second; what is behind them is left to ms-swift."""
_DECODER = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"\s*")


def check_data_files(args: Any) -> None:
    """Refuse to train on nothing, and files that are not there, hold nothing or are no JSON.

    ms-swift takes the name of a file that is not there for the id of a data set and asks a hub for it. Raises
    ConfigError.
    """
    if not (args.dataset or args.cached_dataset):
        raise ConfigError(
            "there is nothing to train on: give --dataset, a file, a folder or the id of a data set"
        )
    for name in (*args.dataset, *args.val_dataset):
        path = str(name).split("#")[0]
        if not path.endswith(DATA_FILES):
            continue
        if not os.path.exists(path):
            raise ConfigError(
                f"the data set {name} is no file here ({os.getcwd()}); give the path of one that exists"
            )
        if os.path.isfile(path):
            _check_rows(path)


def _check_rows(path: str) -> None:
    if not os.path.getsize(path):
        raise ConfigError(f"the data set {path} is empty; give a file with at least one row")
    if not path.endswith(JSON_FILES):
        return
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        text = file.read(MOST_CHARACTERS)
        is_whole = not file.read(1)
    if not is_whole:
        text = text[: text.rfind("\n") + 1]
    elif not text.strip() or text.strip() in ("[]", "{}"):
        raise ConfigError(f"the data set {path} has no rows; give a file with at least one")
    if (fault := _fault(text, is_whole)) is not None:
        number, why = fault
        raise ConfigError(
            f"line {number} of the data set {path} is no row: {why}; give one JSON object a line, such as"
            ' {"messages": [{"role": "user", "content": "What is 6 x 7?"}], "solution": "42"}'
        )


def _fault(text: str, is_whole: bool) -> tuple[int, str] | None:
    """The first line, from 1, at which the text is no sequence of JSON values, and why.

    An object may go over several lines, and a list may hold all of them: ms-swift reads those too.
    """
    at = _behind_space(text, 0)
    is_list = text[at : at + 1] == "["
    try:
        while at < len(text):
            begin, (value, at) = at, _DECODER.raw_decode(text, at)
            if not isinstance(value, (dict, list)):
                return text.count("\n", 0, begin) + 1, f"it is {json.dumps(value)[:40]}"
            at = _behind_space(text, at)
    except json.JSONDecodeError as error:
        if not is_list:
            return _broken_line(text, error)
        return (error.lineno, _why(error)) if is_whole else None  # else the list ends behind what was read
    except RecursionError:
        return None  # left to ms-swift's reader, which may go deeper
    return None


def _broken_line(text: str, error: json.JSONDecodeError) -> tuple[int, str]:
    """The first line that is no JSON by itself: the error of the whole is often at the one behind it."""
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                _DECODER.decode(line)
        except json.JSONDecodeError as own:
            return number, _why(own)
    return error.lineno, _why(error)


def _why(error: json.JSONDecodeError) -> str:
    return f"{error.msg} (column {error.colno})"


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches an empty text too"
    return found.end()
