"""`swift-rlx store import | export`: logs, conversations, and scores by people."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from swift_rlx.cli.store_command import (
    StoreCommand,
    chosen_model,
    file_arguments,
    model_arguments,
    named_columns,
)
from swift_rlx.errors import ConfigError

if TYPE_CHECKING:
    from swift_rlx.integration.log_encoding import LogEncoder
    from swift_rlx.store.log_rows import LogColumns

MAX_SHOWN = 3


def _encoder(options: argparse.Namespace) -> LogEncoder | None:
    if options.model is None:
        return None
    from swift_rlx.integration.log_encoding import LogEncoder

    return LogEncoder(**chosen_model(options))


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    file_arguments(
        parser,
        holds="logged answers",
        meanings="prompt, prompt_ids, answer, token_ids, logprobs, loss_mask, score, id, finish_reason",
    )
    add = parser.add_argument
    add("--source", default="score", help="what plain scores are called among several (default %(default)s)")
    add("--version", default="imported", help="version of the scores (default %(default)s)")
    model_arguments(parser, "whose tokenizer and template make token ids of text")
    add(
        "--skip-unfit",
        action="store_true",
        help="leave rows out that cannot be imported; otherwise the first ends it",
    )
    add("--buckets", type=int, help="of a new store: parts by prompt (default 4)")
    add(
        "--exact-logprobs",
        action="store_true",
        help="of a new store: log-probs in float32, not in half precision",
    )
    add(
        "--scores-only",
        action="store_true",
        help="the files have scores of trajectories that are in the store: columns trajectory_id and score, or as"
        " --columns id=... score=... say",
    )


def _import(options: argparse.Namespace) -> int:
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.store.log_import import LogImport, import_log, import_scores, read_log

    columns = _log_columns(options)
    if options.scores_only:
        names = columns.names
        count = import_scores(
            TrajectoryStore.open(options.store),
            options.files,
            names.get("id", "trajectory_id"),
            names.get("score", "score"),
            columns.source,
        )
        print(
            f"added {count:,} scores as {columns.source.name}@{columns.source.version}; make rewards of them with:"
        )
        print(
            f"    swift-rlx store score {options.store} --stored {columns.source.name}@{columns.source.version}"
        )
        return 0
    TrajectoryStore.check_new(options.store)
    what = LogImport(tuple(options.files), columns, options.model or "", options.skip_unfit)
    log, encoder = read_log(what), _encoder(options)
    is_half = False if options.exact_logprobs else None
    store = TrajectoryStore.create(options.store, buckets=options.buckets, is_half=is_half)
    done = import_log(store, what, log, encoder)
    print(
        f"imported {done.rows:,} trajectories of {done.groups:,} prompts; {done.without_logprobs:,} have no log-probs"
    )
    if done.skipped:
        print(f"left out {len(done.skipped):,} rows, such as:")
        for error in done.skipped[:MAX_SHOWN]:
            print(f"    {error}")
    return 0


def _log_columns(options: argparse.Namespace) -> LogColumns:
    from swift_rlx.store.log_rows import LogColumns
    from swift_rlx.store.recipe import Source

    names = named_columns(options.columns)
    return LogColumns(names, Source(options.source, options.version))


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, help="new .jsonl or .csv file")
    add(
        "--sheet",
        action="store_true",
        help="a sheet for people to score: trajectory_id, prompt, answer, reward, and an empty score",
    )
    model_arguments(parser, "whose tokenizer and template make text of token ids where rows have none")


def _export(options: argparse.Namespace) -> int:
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.store.log_export import conversations, sheet, write_rows

    if options.file.suffix == ".csv" and not options.sheet:
        raise ConfigError(f"'{options.file}' is refused: conversations are no table; use .jsonl, or --sheet")
    snapshot = TrajectoryStore.open(options.store).snapshot()
    encoder = _encoder(options)
    rows = (sheet if options.sheet else conversations)(snapshot, encoder.decode if encoder else None)
    print(f"wrote {write_rows(rows, options.file):,} trajectories to {options.file}")
    return 0


COMMANDS = {
    "import": StoreCommand(
        "add logged answers with their scores, or scores by people",
        "answers.store log.csv --columns prompt=question answer=output score=rating --model Qwen/Qwen2.5-0.5B",
        _import_arguments,
        _import,
    ),
    "export": StoreCommand(
        "write conversations for ms-swift and `datasets`, or a sheet for people to score",
        "answers.store to_score.csv --sheet",
        _export_arguments,
        _export,
    ),
}
