"""Imports logged answers, and scores by people, from files."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swift_rlx.errors import StoreError
from swift_rlx.store.log_files import RowRefused, digest, read_rows
from swift_rlx.store.log_groups import to_group
from swift_rlx.store.log_rows import Encoder, LogColumns, LoggedPrompt, grouped, number
from swift_rlx.store.people_scores import add_scores
from swift_rlx.store.recipe import Source
from swift_rlx.store.stored_group import as_row_id
from swift_rlx.store.trajectory_store import TrajectoryStore

logger = logging.getLogger(__name__)
ROUND_GROUPS = 4096


@dataclass(frozen=True, slots=True)
class LogImport:
    """`model`: what the token ids are of, for text. `skips_unfit`: leave unfit rows out, and say which."""

    files: tuple[Path, ...]
    columns: LogColumns
    model: str = ""
    skips_unfit: bool = False


@dataclass(frozen=True, slots=True)
class Imported:
    """`without_logprobs`: rows whose log-probs are missing."""

    groups: int
    rows: int
    without_logprobs: int
    skipped: tuple[RowRefused, ...]


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The prompts of files with their answers, and the rows that were left out."""

    prompts: tuple[LoggedPrompt, ...]
    skipped: tuple[RowRefused, ...]


def read_log(what: LogImport) -> ReadLog:
    """Read the files. Raises `StoreError` for an unfit row, unless those are left out, and for files without rows."""
    skipped: list[RowRefused] = []
    rows = (row for file in what.files for row in read_rows(file))
    prompts = grouped(rows, what.columns, skipped if what.skips_unfit else None)
    if not prompts:
        raise StoreError(f"{_named(what.files)} has no row to import")
    asked = Counter(repr(one.messages if one.messages is not None else one.token_ids) for one in prompts)
    if repeated := sum(count > 1 for count in asked.values()):
        logger.warning(
            f"{repeated} prompts are there under several ids, a group for each id: where the column"
            f" '{what.columns.names.get('id', 'id')}' is the id of an answer, leave it out (--columns id=none)"
        )
    return ReadLog(tuple(prompts), tuple(skipped))


def import_log(store: TrajectoryStore, what: LogImport, log: ReadLog, encoder: Encoder | None) -> Imported:
    """Add all of `log`, which `read_log` made of the same files.

    What an earlier call that was killed has sealed is not added again. Raises `StoreError` where the files were
    imported before, and where the encoder cannot do its work: rounds before that row are sealed then.
    """
    prompts = log.prompts
    begins = range(0, len(prompts), ROUND_GROUPS)
    num_rows = without = 0
    with store.writer(_writer_name(what)) as writer:
        if writer.next_round >= len(begins):
            raise StoreError(
                f"{_named(what.files)} is in the store '{store.place.url}' already; nothing was added"
            )
        for begin in begins[writer.next_round :]:
            groups = [
                to_group(logged, order, what.columns, encoder)
                for order, logged in enumerate(prompts[begin : begin + ROUND_GROUPS], begin)
            ]
            writer.add(groups)
            writer.seal()
            members = [one for stored in groups for one in stored.group.members]
            num_rows += len(members)
            without += sum(one.completion.fault() is not None for one in members)
    return Imported(len(prompts), num_rows, without, log.skipped)


def import_scores(
    store: TrajectoryStore, files: Sequence[Path], id_column: str, score_column: str, source: Source
) -> int:
    """Add the scores of the files' rows that have one; how many. Raises `StoreError`, naming the row."""
    scores: dict[int, float] = {}
    for row in (row for file in files for row in read_rows(file)):
        if id_column not in row.values:
            raise row.refused(f"there is no column '{id_column}'; it has {', '.join(row.values)}")
        if (given := row.values.get(score_column)) is None:
            continue
        if row.values[id_column] is None:
            raise row.refused(f"its {id_column} is empty")
        try:
            row_id = as_row_id(str(row.values[id_column]).strip())
        except ValueError as error:
            raise row.refused(str(error)) from error
        if row_id in scores:
            raise row.refused(f"trajectory {row.values[id_column]} has a score already")
        scores[row_id] = number(row, given)
    if not scores:
        raise StoreError(f"{_named(files)} has no score in a column '{score_column}'")
    add_scores(store, source, scores)
    return len(scores)


def _writer_name(what: LogImport) -> str:
    """The same for the same files read in the same way, and for nothing else."""
    found = hashlib.blake2b(digest_size=8)
    for text in [*map(digest, what.files), repr(sorted(what.columns.names.items())), repr(what.columns.source),
                 what.model, str(what.skips_unfit)]:  # fmt: skip
        found.update(text.encode() + b"\0")
    return f"import-{found.hexdigest()}"


def _named(files: Sequence[Path]) -> str:
    return ", ".join(f"'{file}'" for file in files)
