"""What the store keeps of a group, and the ids of prompts and rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from swift_rlx.types import Prompt, SamplingParams, TrajectoryGroup


@dataclass(frozen=True, slots=True, eq=False)
class StoredGroup:
    """A group with what its records do not say.

    The prompt's `token_ids` and `columns` are kept, its `model_inputs` are not. Completions without log-probs have NaN
    in each place: they are computed at training. `texts` and `sampling`: of each member, or empty where unknown.
    `prompt_id`: what identifies the prompt beyond this run, by default its token ids. `recipe`: what the reward was
    made of, by default the sources with their versions, as in `accuracy@1.0+length@2`.
    """

    group: TrajectoryGroup
    texts: tuple[str, ...] = ()
    sampling: tuple[SamplingParams, ...] = ()
    engine: str = ""
    prompt_id: str = ""
    recipe: str = ""

    def __post_init__(self) -> None:
        for name in ("texts", "sampling"):
            if len(getattr(self, name)) not in (0, len(self.group.members)):
                raise ValueError(
                    f"StoredGroup got {len(getattr(self, name))} {name} for {len(self.group.members)} members"
                )


def prompt_number(prompt: Prompt, prompt_id: str = "") -> int:
    """64 bits that identify a prompt in every run: digest of its id, or else of its token ids."""
    data = prompt_id.encode() if prompt_id else np.ascontiguousarray(prompt.token_ids, np.int32).tobytes()
    return _digest(b"id" if prompt_id else b"tokens", data)


def row_base(writer: str, number: int) -> int:
    """64 bits for a round of a writer; a row's id is this plus its place in the round, modulo 2**64."""
    return _digest(b"round", f"{writer}/{number}".encode())


def as_text(row_id: int) -> str:
    """An id as people see it: 16 hexadecimal digits, which no spreadsheet takes for a number to round."""
    return f"r{row_id:016x}"


def as_row_id(text: str) -> int:
    """The id that `as_text` wrote. Raises `ValueError` for anything else."""
    if len(text) != 17 or not text.startswith("r"):
        raise ValueError(f"{text!r} is no trajectory id: it is r and 16 hexadecimal digits")
    return int(text[1:], 16)


def _digest(kind: bytes, data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=kind).digest(), "little")
