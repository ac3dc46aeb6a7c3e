"""Logged answers as rows of jsonl, parquet and csv files; every row knows where it is from."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_rlx.errors import StoreError

BLOCK_BYTES = 2**22


class RowRefused(StoreError):
    """A row of a file that cannot be imported; the message names the file and the row."""


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A row of a file. `number`: its line in a jsonl or csv file, its place from 1 on in a parquet file."""

    file: Path
    number: int
    values: Mapping[str, Any]

    def refused(self, why: str) -> RowRefused:
        """An error that says where the row is."""
        kind = "row" if self.file.suffix == ".parquet" else "line"
        return RowRefused(f"{self.file}, {kind} {self.number}: {why}")


def read_rows(file: Path) -> Iterator[LoggedRow]:
    """The rows of a file, by its extension. Raises `RowRefused`, and `StoreError` for files that are not such."""
    readers = {".jsonl": _jsonl, ".json": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if (reader := readers.get(file.suffix.lower())) is None:
        raise StoreError(f"'{file}' cannot be imported: its name ends in {file.suffix or 'nothing'}; use"
                         f" {', '.join(readers)}")  # fmt: skip
    if not file.is_file():
        raise StoreError(f"'{file}' cannot be imported: there is no such file")
    try:
        yield from reader(file)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"'{file}' cannot be imported: {error}") from error


def digest(file: Path) -> str:
    """Of the contents of a file: the same file is not imported twice."""
    found = hashlib.blake2b(digest_size=8)
    with file.open("rb") as opened:
        while block := opened.read(BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def _jsonl(file: Path) -> Iterator[LoggedRow]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:
                raise LoggedRow(file, number, {}).refused(f"no JSON: {error}") from error
            if not isinstance(values, dict):
                raise LoggedRow(file, number, {}).refused(
                    f"a JSON object is needed, this is {type(values).__name__}; write one object a line"
                )
            yield LoggedRow(file, number, values)


def _csv(file: Path) -> Iterator[LoggedRow]:
    csv.field_size_limit(2**31 - 1)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        while True:
            number = reader.line_num + 1
            try:
                values = next(reader, None)
            except csv.Error as error:
                raise LoggedRow(file, number, {}).refused(f"no CSV: {error}") from error
            if values is None:
                return
            number = max(number, 2)  # the first line is that of the names
            if None in values or None in values.values():
                raise LoggedRow(file, number, {}).refused(
                    "it has another number of fields than the first line"
                )
            yield LoggedRow(file, number, {name: text or None for name, text in values.items()})


def _parquet(file: Path) -> Iterator[LoggedRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = itertools.count(1)
    try:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(1024):
                for values in batch.to_pylist():
                    yield LoggedRow(file, next(numbers), values)
    except pa.ArrowException as error:
        raise StoreError(f"'{file}' cannot be imported: it is no parquet file: {error}") from error
