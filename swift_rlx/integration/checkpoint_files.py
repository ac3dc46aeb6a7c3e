"""Whether a checkpoint has all that a run needs to go on; a trainer that is killed while it saves leaves a part.

    checkpoint-N/rlx/              written first: what the Trainer does not save
    checkpoint-N/...               then the weights, the optimizer, the schedule, the state of the random numbers
    checkpoint-N/trainer_state.json    written last, by ms-swift's Trainer

Only names, sizes and the two small JSON files are looked at, before anything is loaded.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift.utils import get_dist_setting

from swift_rlx.errors import CheckpointError

TRAINER_STATE, RLX_STATE = "trainer_state.json", "rlx/state.json"
NUMBERED = re.compile(r"checkpoint-(\d+)")
WEIGHTS = ("*.safetensors", "*.bin", "*/*.safetensors", "*/*.bin", "pytorch_model_fsdp*", "global_step*")
NOT_WEIGHTS = ("optimizer", "training_args", "scheduler")
OPTIMIZER, SCHEDULE, RANDOM = (
    ("optimizer*", "global_step*"),
    ("scheduler*", "global_step*"),
    ("rng_state*",),
)


def missing_part(checkpoint: str | Path) -> str | None:
    """The first part of a checkpoint that is not there or is cut off, in words; None for a complete one."""
    folder = Path(checkpoint)
    for name, why in ((TRAINER_STATE, ", which is written last"), (RLX_STATE, "")):
        if _read(folder / name) is None:
            there = (folder / name).exists()
            return f"{'readable ' if there else ''}{name}{why}"
    if not has_weights(folder):
        return "weights"
    for what, patterns in (
        ("state of the optimizer", OPTIMIZER),
        ("state of the learning rate's schedule", SCHEDULE),
        ("state of the random numbers", RANDOM),
    ):
        if not _has(folder, patterns):
            return what
    return _missing_buffer(folder)


def has_weights(folder: Path) -> bool:
    """Whether there is a file of weights, of a model or an adapter."""
    return any(
        found.parent.name != "rlx" and not found.name.startswith(NOT_WEIGHTS)
        for found in _found(folder, WEIGHTS)
    )


def last_complete(directory: str | Path) -> Path | None:
    """The complete `checkpoint-N` of a run's directory with the highest N; None: there is none."""
    if not os.path.isdir(directory):
        return None
    named = [(NUMBERED.fullmatch(path.name), path) for path in Path(directory).iterdir()]
    numbered = sorted(((int(match[1]), path) for match, path in named if match), reverse=True)
    return next((path for _, path in numbered if missing_part(path) is None), None)


def refuse_incomplete(checkpoint: str, only_weights: bool = False) -> None:
    """Raise CheckpointError for a checkpoint that a run cannot go on from, naming the last one that it can.

    `only_weights`: no more than its weights are needed.
    """
    folder = Path(checkpoint)
    missing = (None if has_weights(folder) else "weights") if only_weights else missing_part(folder)
    if missing is None:
        return
    inside = last_complete(folder)
    name = os.path.basename(os.path.abspath(checkpoint))
    if inside is not None:
        raise CheckpointError(
            f"--resume_from_checkpoint {checkpoint} is refused: it is the directory of a run; its last complete"
            f" checkpoint is {inside}"
        )
    beside = last_complete(folder.absolute().parent)
    instead = (
        f"resume from {beside}, the last complete one"
        if beside is not None
        else f"there is no complete one in {folder.absolute().parent}, so begin anew without the flag"
    )
    if not only_weights and has_weights(folder):
        instead += ", or take only its weights with --resume_only_model true"
    raise CheckpointError(
        f"--resume_from_checkpoint {checkpoint} is refused: {name} is incomplete, it has no {missing} (was the trainer"
        f" ended while it was saved?); {instead}"
    )


def _missing_buffer(folder: Path) -> str | None:
    """Of this rank, where only a part of a generation batch was trained."""
    state = _read(folder / RLX_STATE) or {}
    rank = max(get_dist_setting()[0], 0)
    name = f"rlx/buffer-rank{rank}.safetensors"
    return name if state.get("buffer_in_use") and not _has(folder, (name,)) else None


def _read(path: Path) -> Any:
    """What a JSON file holds; None: it is not there, or was cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _has(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for _ in _found(folder, patterns))


def _found(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Folders, and files with something in them: a machine that lost its power leaves empty ones."""
    for pattern in patterns:
        yield from (path for path in folder.glob(pattern) if path.is_dir() or path.stat().st_size)
