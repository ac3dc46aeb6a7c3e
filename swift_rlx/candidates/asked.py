"""Prompts of files, and what identifies them wherever they stand."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.log_files import LoggedRow, read_rows
from swift_rlx.store.log_rows import as_messages

MEDIA = ("images", "videos", "audios")


@dataclass(frozen=True, slots=True)
class PromptColumns:
    """`prompt`: the column of the prompt, text or messages; None: `prompt`, else `messages`. `id`: of its id."""

    prompt: str | None = None
    id: str = "id"


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt of a file. `place`: among all of them, from 0 on.

    `index`: 63 bits that follow from its messages. `epoch`: how often the same messages came before it. `prompt_id`: as
    the file has it, or empty. `columns`: what the store keeps and rewards get, its messages included.
    """

    row: LoggedRow
    place: int
    index: int
    epoch: int
    prompt_id: str
    messages: list[dict[str, Any]]
    columns: Mapping[str, Any]

    @property
    def key(self) -> tuple[int, int]:
        """What identifies it: `Prompt.key`."""
        return (self.epoch, self.index)


def read_prompts(
    files: Sequence[Path], columns: PromptColumns, system: str | None = None
) -> list[AskedPrompt]:
    """The prompts of the files. A conversation that ends with an answer is asked without it, as in training.

    `system`: of those that have none. Raises `StoreError` for a row that is no prompt of text, and for none at all.
    """
    seen: Counter[int] = Counter()
    found = []
    for place, row in enumerate(row for file in files for row in read_rows(file)):
        messages = _messages(row, columns)
        if system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        index = _digest(messages)
        given = row.values.get(columns.id)
        prompt_id = "" if given is None else str(given)
        kept = _kept(row, columns.prompt or "prompt") | {"messages": messages}
        found.append(AskedPrompt(row, place, index, seen[index], prompt_id, messages, kept))
        seen[index] += 1
    if not found:
        raise StoreError(f"{', '.join(map(repr, map(str, files)))} has no prompt")
    return found


def _messages(row: LoggedRow, columns: PromptColumns) -> list[dict[str, Any]]:
    names = ("prompt", "messages") if columns.prompt is None else (columns.prompt,)
    given = next((row.values[name] for name in names if row.values.get(name) is not None), None)
    if given is None:
        if any(name in row.values for name in names):
            raise row.refused("its prompt is empty")
        raise row.refused(
            f"it has no prompt in a column {' or '.join(names)}; its columns are {', '.join(row.values) or 'none'}:"
            " name one, as in --columns prompt=question"
        )
    messages = as_messages(row, given)
    if messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise row.refused("its messages are an answer without a prompt")
    _refuse_media(row, messages)
    return messages


def _kept(row: LoggedRow, prompt: str) -> dict[str, Any]:
    """The columns that have a value, but the prompt's."""
    kept = {name: value for name, value in row.values.items() if name != prompt and value is not None}
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise row.refused(
            f"a column cannot be stored ({error}); use text, numbers, lists and dicts"
        ) from error
    return kept


def _refuse_media(row: LoggedRow, messages: Iterable[Mapping[str, Any]]) -> None:
    media = next((name for name in MEDIA if row.values.get(name)), None)
    if media is None and any(not isinstance(one["content"], str) for one in messages):
        media = "content that is no text"
    if media is not None:
        raise row.refused(
            f"it has {media}, and candidates are generated for prompts of text alone; leave it out"
        )


def _digest(messages: list[dict[str, Any]]) -> int:
    text = json.dumps(messages, sort_keys=True, ensure_ascii=False)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
