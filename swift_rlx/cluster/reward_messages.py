"""What the trainer and a process that scores say to each other: one question, one answer, and so on.

    trainer                          process
    Begin(sys_path)         ->
    Load(name, origin)      ->
                            <-       Loaded(error)             "" where the reward is there
    Ask(name, ...)          ->
                            <-       Answered(...)             one of values, refusal and failure

As `messages.py`, and as there nothing that is received is executed; a reward is found by its name or file. A record
that is no plain data, as ms-swift's `trainer_state`, arrives with those of its fields that are single plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from swift_rlx.cluster.messages import encode_array_or_refuse, extension_decoder
from swift_rlx.errors import BackendRejected
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.origin import Origin
from swift_rlx.rewards.outcome import Failure, Outcome, Refusal

_RECORD = 2
"""Code of a record among msgpack's extension types; 1 is an array."""
_SINGLE = (str, int, float, bool, type(None))


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first message. `sys_path`: the trainer's, so that a reward is found where the trainer finds it."""

    sys_path: tuple[str, ...]


class Load(msgspec.Struct, tag=True, frozen=True):
    """Find the reward and construct it. Answered by `Loaded`."""

    name: str
    loader: str
    options: Mapping[str, Any]

    @property
    def origin(self) -> Origin:
        """Where from."""
        return Origin(self.loader, self.options)


class Ask(msgspec.Struct, tag=True, frozen=True):
    """Call the reward. Answered by `Answered`."""

    name: str
    first: Any
    columns: dict[str, Any]
    num_rows: int
    is_single: bool

    @classmethod
    def of(cls, name: str, call: Call) -> Ask:
        """A call, with records among its columns reduced to what can be sent."""
        columns = {column: _sendable(value) for column, value in call.columns.items()}
        return cls(name, call.first, columns, call.num_rows, call.is_single)

    @property
    def call(self) -> Call:
        """With these arguments."""
        return Call(self.first, self.columns, self.num_rows, self.is_single)


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """`error`: why it cannot be used there."""

    error: str = ""


class Answered(msgspec.Struct, tag=True, frozen=True):
    """An outcome."""

    values: tuple[float | None, ...] | None = None
    refusal: Refusal | None = None
    failure: Failure | None = None

    @property
    def outcome(self) -> Outcome:
        """As it is there, without the error itself."""
        return Outcome(self.values, self.refusal, self.failure)


ToScorer = Begin | Load | Ask
FromScorer = Loaded | Answered


def encode_for_scorer(message: ToScorer | FromScorer) -> bytes:
    """The message as bytes. Raises `BackendRejected` for what is no plain data."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BackendRejected(
            f"{type(message).__name__} cannot be sent to another process: {error}"
        ) from error


def _sendable(value: Any) -> Any:
    """A record reduced to its single plain values; anything else as it is."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    plain = {one.name: getattr(value, one.name, None) for one in fields(value)}
    kept = {name: one for name, one in plain.items() if isinstance(one, _SINGLE)}
    return msgspec.msgpack.Ext(_RECORD, msgspec.msgpack.encode(kept))


def _decode_record(data: memoryview) -> SimpleNamespace:
    return SimpleNamespace(**msgspec.msgpack.decode(data, type=dict[str, Any]))


_EXTENSIONS = extension_decoder({_RECORD: _decode_record})
_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_array_or_refuse, decimal_format="number")
TO_SCORER: msgspec.msgpack.Decoder[ToScorer] = msgspec.msgpack.Decoder(ToScorer, ext_hook=_EXTENSIONS)
FROM_SCORER: msgspec.msgpack.Decoder[FromScorer] = msgspec.msgpack.Decoder(FromScorer, ext_hook=_EXTENSIONS)
