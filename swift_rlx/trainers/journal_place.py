"""Where the journal of a run lies: `<output_dir>/rlx/journal`, beside the checkpoints that it goes on from.

ms-swift gives a resumed run an output directory of its own. What happens before its first checkpoint still belongs to
the one that it was resumed from, so it is kept beside that one: there a further resume will look for it.
"""

import os
from dataclasses import replace
from pathlib import Path

from swift.utils import get_logger

from swift_rlx.scheduler.journal import go_on
from swift_rlx.scheduler.journal_segments import Segment
from swift_rlx.scheduler.resume import RolloutState
from swift_rlx.scheduler.state_file import STATE, journal_of

logger = get_logger()
CHECKPOINTS_WITH_JOURNAL = 2
"""The newest one may turn out to be torn after a loss of power; then the one before it is resumed."""


def journal_directory(output_dir: str | Path) -> Path:
    """The directory of the journal that goes on from the checkpoints in `output_dir`."""
    return Path(output_dir, "rlx", "journal")


def go_on_from(state: RolloutState, checkpoint: Path, output_dir: str) -> tuple[RolloutState, Segment | None]:
    """What a checkpoint saved with what its journal has behind it, and where this start's entries go.

    Raises `StoreError` or `CheckpointError` for a journal that cannot be used.
    """
    if not state.journal:
        return state, None
    directory = journal_directory(checkpoint.parent)
    advanced, segment, cut_bytes = go_on(state, directory)
    ready = sum(one.ready is not None for one in advanced.open)
    replayed = sum(len(picked.orders) for picked in advanced.replay)
    batches = sum(bool(picked.orders) for picked in advanced.replay)
    fills = len(advanced.replay) - batches
    filled = f", {fills} times stored groups fill a wait again" if fills else ""
    logger.info(
        f"journal in '{directory}': {batches} batches since the checkpoint are trained again as they were{filled},"
        f" {ready - replayed} groups are ready, {len(advanced.open) - ready} prompts are generated again;"
        f" {cut_bytes} bytes at its end were torn"
    )
    if not _is_writable(directory):
        segment = replace(segment, directory=journal_directory(output_dir))
        logger.info(f"'{directory}' cannot be written: the journal goes to '{segment.directory}'")
    return advanced, segment


def needed_segments(output_dir: str) -> set[str]:
    """The segments that the newest checkpoints name."""
    saved = Path(output_dir).glob(f"checkpoint-*/rlx/rollout/{STATE}")
    newest = sorted(saved, key=lambda path: path.stat().st_mtime)[-CHECKPOINTS_WITH_JOURNAL:]
    return {name for path in newest if (name := journal_of(path.parent))}


def _is_writable(directory: Path) -> bool:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    return os.access(there, os.W_OK)
