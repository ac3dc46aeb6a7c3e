"""Rows of a store for others: conversations that ms-swift and `datasets` load, and a sheet for people to score."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.snapshot import Snapshot
from swift_rlx.store.stored_group import StoredGroup, as_text
from swift_rlx.types import IntArray

RECORD = "trajectory"
"""The one column that holds what is ours: ms-swift takes several plain names for fields of its own."""
SHEET = ("trajectory_id", "prompt", "answer", "reward", "score")

Decode = Callable[[IntArray], str]


def conversations(snapshot: Snapshot, decode: Decode | None = None) -> Iterator[dict[str, Any]]:
    """Of each row the `messages` with the answer, the prompt's other columns as JSON text, and the record.

    Text of multi-turn rows is that of all turns. `decode`: text of token ids, for rows without text. Raises
    `StoreError` for such a row without it.
    """
    for ids, stored in _groups(snapshot):
        prompt = stored.group.prompt
        columns = {name: value for name, value in prompt.columns.items() if name != "messages"}
        for row_id, place in zip(ids, range(len(stored.group.members)), strict=True):
            one = stored.group.members[place]
            answer = {"role": "assistant", "content": _text(stored, place, row_id, decode)}
            parts = [
                {"name": part.name, "value": part.value, "version": part.version}
                for part in one.score.breakdown
            ]
            record = {
                "id": as_text(row_id),
                "reward": one.score.reward,
                "recipe": stored.recipe,
                "parts": parts,
                "finish_reason": one.completion.finish_reason.value,
                "num_tokens": one.completion.num_tokens,
                "policy_step": int(one.completion.policy_steps.min(initial=2**31 - 1)),
                "columns": json.dumps(columns, ensure_ascii=False),
            }
            yield {"messages": [*_messages(stored, row_id, decode), answer], RECORD: record}


def sheet(snapshot: Snapshot, decode: Decode | None = None) -> Iterator[dict[str, Any]]:
    """Of each row what a person needs to score it: the columns `SHEET`, the score still empty."""
    for ids, stored in _groups(snapshot):
        for place, row_id in enumerate(ids):
            messages = _messages(stored, row_id, decode)
            yield {
                "trajectory_id": as_text(row_id),
                "prompt": "\n\n".join(f"{one['role']}: {one['content']}" for one in messages),
                "answer": _text(stored, place, row_id, decode),
                "reward": stored.group.members[place].score.reward,
                "score": None,
            }


def write_rows(rows: Iterator[dict[str, Any]], file: Path) -> int:
    """Write a jsonl or a csv file, which must not exist; the number of rows. Raises `StoreError`."""
    if file.suffix not in (".jsonl", ".csv"):
        raise StoreError(
            f"'{file}' cannot be written: its name ends in {file.suffix or 'nothing'}; use .jsonl or .csv"
        )
    count = 0
    try:
        with file.open("x", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, SHEET, restval="") if file.suffix == ".csv" else None
            if writer is not None:
                writer.writeheader()
            for row in rows:
                count += 1
                if writer is not None:
                    writer.writerow(row)
                else:
                    opened.write(json.dumps(row, ensure_ascii=False) + "\n")
    except FileExistsError as error:
        raise StoreError(f"'{file}' is there already; name a new file, or remove it") from error
    except (OSError, StoreError) as error:
        file.unlink(missing_ok=True)
        raise StoreError(f"'{file}' cannot be written: {error}") from error
    return count


def _groups(snapshot: Snapshot) -> Iterator[tuple[list[int], StoredGroup]]:
    for number, stored in enumerate(snapshot.groups(range(snapshot.num_groups))):
        yield [row.row_id for row in snapshot.rows(snapshot.rows_of(number))], stored


def _messages(stored: StoredGroup, row_id: int, decode: Decode | None) -> list[dict[str, Any]]:
    messages = stored.group.prompt.columns.get("messages")
    if isinstance(messages, list) and messages:
        return list(messages)
    return [{"role": "user", "content": _decoded(stored.group.prompt.token_ids, row_id, decode)}]


def _text(stored: StoredGroup, place: int, row_id: int, decode: Decode | None) -> str:
    if stored.texts and stored.texts[place]:
        return stored.texts[place]
    return _decoded(stored.group.members[place].completion.token_ids, row_id, decode)


def _decoded(ids: IntArray, row_id: int, decode: Decode | None) -> str:
    if decode is None:
        raise StoreError(
            f"trajectory {as_text(row_id)} has token ids but no text; give the model whose tokenizer makes"
            " it: --model ID"
        )
    return decode(ids)
