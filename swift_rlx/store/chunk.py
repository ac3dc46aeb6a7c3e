"""A record batch of a memory-mapped shard as numpy views: a row costs no more than its own bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.store.schema import Batch
from swift_rlx.types import BoolArray, IntArray

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class StoredRow:
    """What training reads of a trajectory. Arrays of its tokens are views of the file, [T], or of runs of them.

    `logprobs`: None where they are missing, else float16 or float32. `loss_mask`: None where every token trains.
    `policy_steps` and `policy_step_lengths`: optimizer step of each run of tokens and the run's length.
    `temperature`: None where unknown.
    """

    row_id: int
    prompt_id: int
    member: int
    prompt_ids: IntArray
    token_ids: IntArray
    logprobs: Array | None
    loss_mask: BoolArray | None
    policy_steps: IntArray
    policy_step_lengths: IntArray
    incarnation: int
    reward: float | None
    temperature: float | None


class Chunk:
    """Views of a batch; `covering`: columns of overlays, in place of those in the batch."""

    def __init__(self, batch: Batch, covering: Mapping[str, Any]) -> None:
        self.batch = batch
        self.num_rows = batch.num_rows
        self.columns = {name: covering.get(name, batch.column(name)) for name in batch.schema.names}
        self.row_ids = self.fixed("row_id")
        self._prompt_numbers = self.fixed("prompt_id")
        self._members = self.fixed("member")
        self._incarnations = self.fixed("incarnation")
        self.rewards, self._is_rewarded = self.fixed("reward"), self.validity("reward")
        self._temperatures, self._has_temperature = self.fixed("temperature"), self.validity("temperature")
        self._prompts, self._tokens = self.lists("prompt_ids"), self.lists("token_ids")
        self._logprobs, self._has_logprobs = self.lists("logprobs"), self.validity("logprobs")
        self._steps, self._lengths = self.lists("policy_steps"), self.lists("policy_step_lengths")
        sampled = self.columns["sampled"]
        self._mask_offsets = _offsets(sampled)
        self._mask_bits = _bits(sampled.values.buffers()[1])
        self._has_mask = self.validity("sampled")
        self._is_first = self.validity("prompt_ids")
        self._begins = self.group_begins()

    def scored(self) -> BoolArray:
        """Which rows have a reward that is a finite number, [num_rows]."""
        return _unpacked(self._is_rewarded, self.num_rows) & np.isfinite(self.rewards)

    def may_train(self) -> BoolArray:
        """Which rows are scored and have a token that trains, [num_rows]."""
        offsets, _ = self._tokens
        has_token = np.diff(offsets) > 0
        if self.columns["sampled"].null_count < self.num_rows:
            begins, ends = self._mask_offsets[:-1], self._mask_offsets[1:]
            before = np.zeros(8 * len(self._mask_bits) + 1, np.int32)
            np.cumsum(np.unpackbits(self._mask_bits, bitorder="little"), dtype=np.int32, out=before[1:])
            has_token &= ~_unpacked(self._has_mask, self.num_rows) | (before[ends] > before[begins])
        return self.scored() & has_token

    def group_begins(self) -> IntArray:
        """The rows that begin a group."""
        return np.flatnonzero(_unpacked(self._is_first, self.num_rows)).astype(np.int32)

    def oldest_steps(self) -> IntArray:
        """Optimizer step of the oldest weights of each row, [num_rows]: steps never fall within a completion."""
        offsets, values = self._steps
        if not len(values):
            return np.zeros(self.num_rows, np.int32)
        return values[np.minimum(offsets[:-1], len(values) - 1)]

    def row(self, place: int) -> StoredRow:
        """The row at that place of the chunk."""
        prompt = place
        if not _is_set(self._is_first, place):
            prompt = int(self._begins[np.searchsorted(self._begins, place, "right") - 1])
        has_logprobs = _is_set(self._has_logprobs, place)
        return StoredRow(
            int(self.row_ids[place]),
            int(self._prompt_numbers[place]),
            int(self._members[place]),
            _item(self._prompts, prompt),
            _item(self._tokens, place),
            _item(self._logprobs, place) if has_logprobs else None,
            self._mask(place) if _is_set(self._has_mask, place) else None,
            _item(self._steps, place),
            _item(self._lengths, place),
            int(self._incarnations[place]),
            float(self.rewards[place]) if _is_set(self._is_rewarded, place) else None,
            float(self._temperatures[place]) if _is_set(self._has_temperature, place) else None,
        )

    def fixed(self, name: str) -> Array:
        """A column of numbers; what stands for null means nothing."""
        column = self.columns[name]
        values = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
        return values[column.offset : column.offset + len(column)]

    def lists(self, name: str) -> tuple[Array, Array]:
        """Offsets, [num_rows + 1], and values of a column of lists of numbers."""
        column = self.columns[name]
        buffer = column.values.buffers()[1]
        dtype = column.type.value_type.to_pandas_dtype()
        return _offsets(column), np.frombuffer(buffer, dtype) if buffer is not None else np.zeros(0, dtype)

    def validity(self, name: str) -> Array | None:
        """Bits that say which rows are not null; None: all."""
        column = self.columns[name]
        if column.offset:
            raise ValueError("a column of a file begins at its first row")
        return _bits(column.buffers()[0]) if column.null_count else None

    def _mask(self, place: int) -> BoolArray:
        begin, end = int(self._mask_offsets[place]), int(self._mask_offsets[place + 1])
        first = begin // 8
        bits = np.unpackbits(self._mask_bits[first : (end + 7) // 8], bitorder="little")
        return bits[begin - 8 * first : end - 8 * first].view(np.bool_)


def _offsets(column: Any) -> Array:
    """Of a list column; a column without rows may have no buffer."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]


def _bits(buffer: Any) -> Array:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _unpacked(bits: Array | None, count: int) -> BoolArray:
    if bits is None:
        return np.ones(count, np.bool_)
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def _is_set(bits: Array | None, place: int) -> bool:
    return bits is None or bool(bits[place >> 3] >> (place & 7) & 1)


def _item(column: tuple[Array, Array], place: int) -> Array:
    offsets, values = column
    return values[offsets[place] : offsets[place + 1]]
