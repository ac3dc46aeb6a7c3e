"""What the trainer and a worker process say to each other.

    trainer                          worker
    Start(spec)             ->
                            <-       Beat(doing) ...           from the first moment, every `BEAT_S` seconds
                            <-       Ready(capabilities)       or Dying, where the engine cannot be built
    Call(number, ...)       ->
                            <-       Progress(answers)         new tokens of all answers, every `REPORT_S` seconds
                            <-       Reply(number, ...)        or Failed(number, error), in any order
    Cancel(number)          ->                                 nobody waits for that reply any more
    Abort(request_ids)      ->                                 these answers end with the tokens that they have
                            <-       Dying(error, traceback)   the engine is lost; the process ends

The records of `swift_rlx.types` and `swift_rlx.backends` travel as they are, as msgpack maps; a field that is added
to one of them travels too. Arrays of numbers and truth values travel as dtype, shape and bytes, also inside plain
data such as `Completion.info`. Nothing else is understood, and nothing that is received is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from swift_rlx import errors
from swift_rlx.backends import Capabilities, EngineSpec, GenerationRequest, WeightFiles
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, RlxError
from swift_rlx.types import Chunk, Completion, FloatArray, IntArray, PolicyVersion

BEAT_S = 0.5
"""Seconds between two signs of life."""
REPORT_S = 0.3
"""Seconds between two messages about tokens, each for all answers in flight; so much is lost when a worker dies."""

_ARRAY = 1
"""Code of an array among msgpack's extension types."""
_KINDS = "biuf"
"""Kinds of numpy dtypes that travel: truth values, integers, floating-point numbers."""


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error by the name of its class in `swift_rlx.errors`."""

    kind: str
    message: str
    lost_tokens: int = 0

    @classmethod
    def of(cls, error: BaseException) -> ErrorRecord:
        """Anything that is not of this package becomes `BackendUnavailable`, its type named in the text."""
        if isinstance(error, RlxError):
            return cls(type(error).__name__, str(error), getattr(error, "lost_tokens", 0))
        return cls(BackendUnavailable.__name__, f"{type(error).__name__}: {error}")

    def error(self, worker: str) -> RlxError:
        """The error, naming the worker that it comes from."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, RlxError)):
            kind = BackendUnavailable
        error: RlxError = kind(f"worker '{worker}': {self.message}")
        if isinstance(error, BackendError):
            error.losing(self.lost_tokens)
        return error


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first message. `sys_path`: the trainer's, so that a factory is found where the trainer finds it.

    `stall_limit_s`: how long the engine may be without a word while it has requests; `stall_floor_s`: the same, once it
    has answered something (`stall_limit.py`).
    """

    spec: EngineSpec
    sys_path: tuple[str, ...]
    stall_limit_s: float
    stall_floor_s: float


class Generate(msgspec.Struct, tag=True, frozen=True):
    """Answered by `Generated`."""

    request: GenerationRequest


class Publish(msgspec.Struct, tag=True, frozen=True):
    """Answered by `Done` once the weights are served. `limit_s`: an engine that takes longer is lost."""

    version: PolicyVersion
    files: WeightFiles
    limit_s: float


class AskHealth(msgspec.Struct, tag=True, frozen=True):
    """Answered by `Serving`."""


class AskLogprobs(msgspec.Struct, tag=True, frozen=True):
    """Answered by `Logprobs`."""

    token_ids: IntArray


class Close(msgspec.Struct, tag=True, frozen=True):
    """Answered by `Done` once the engine is closed; then the process ends."""


class Call(msgspec.Struct, tag=True, frozen=True):
    """A question with the number under which it is answered."""

    number: int
    body: Generate | Publish | AskHealth | AskLogprobs | Close


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """The reply to this call is not needed any more."""

    number: int


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End these requests soon."""

    request_ids: tuple[str, ...]


class Beat(msgspec.Struct, tag=True, frozen=True):
    """A sign of life. `doing`: what the worker is busy with before it is ready."""

    doing: str = ""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine can be asked. `note`: its memory and devices, for the log."""

    capabilities: Capabilities
    note: str = ""


class Progress(msgspec.Struct, tag=True, frozen=True):
    """Tokens of answers that are being made, each with the number of its call."""

    answers: tuple[tuple[int, Chunk], ...]


class Generated(msgspec.Struct, tag=True, frozen=True):
    """An answer."""

    completion: Completion


class Done(msgspec.Struct, tag=True, frozen=True):
    """It is done."""


class Serving(msgspec.Struct, tag=True, frozen=True):
    """The version that new requests get."""

    version: PolicyVersion


class Logprobs(msgspec.Struct, tag=True, frozen=True):
    """Of the tokens asked for but the first, [T - 1]."""

    values: FloatArray


Body = Generate | Publish | AskHealth | AskLogprobs | Close
Answer = Generated | Done | Serving | Logprobs


class Reply(msgspec.Struct, tag=True, frozen=True):
    """The answer to a call."""

    number: int
    body: Generated | Done | Serving | Logprobs


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The call raised."""

    number: int
    error: ErrorRecord


class Dying(msgspec.Struct, tag=True, frozen=True):
    """The last message of a worker whose engine is lost or could not be built."""

    error: ErrorRecord
    traceback: str


ToWorker = Start | Call | Cancel | Abort
FromWorker = Beat | Ready | Progress | Reply | Failed | Dying


def without_columns(request: GenerationRequest) -> GenerationRequest:
    """The request as it travels: engines do not see the columns of the data, which may hold anything."""
    return replace(request, prompt=replace(request.prompt, columns={}))


def encode(message: ToWorker | FromWorker) -> bytes:
    """The message as bytes. Raises `BackendRejected` for what cannot travel."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, OverflowError, RecursionError) as error:
        raise BackendRejected(
            f"{type(message).__name__} cannot be sent to another process: {error}; use plain data and numpy arrays of"
            " numbers"
        ) from error


def encode_array_or_refuse(value: Any) -> Any:
    """What msgspec does not know as what it does: numbers and arrays of numpy. Raises TypeError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _KINDS:
            raise TypeError(f"an array of dtype {value.dtype}")
        head = (
            value.dtype.str,
            value.shape,
            np.ascontiguousarray(value).data.cast("B") if value.size else b"",
        )
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(head))
    raise TypeError(f"an object of type {type(value).__name__}")


def extension_decoder(
    others: Mapping[int, Callable[[memoryview], Any]],
) -> Callable[[int, memoryview], Any]:
    """Decodes arrays and, by their codes, `others`."""
    known = {_ARRAY: _decode_array, **others}

    def decode(code: int, data: memoryview) -> Any:
        if code not in known:
            raise ValueError(f"unknown extension {code}")
        return known[code](data)

    return decode


def _decode_array(data: memoryview) -> Any:
    dtype_text, shape, raw = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], memoryview])
    dtype = np.dtype(dtype_text)
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of dtype {dtype}")
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def _decode_other(kind: Any, value: Any) -> Any:
    return value  # arrays were made by `_decode_extension`; what is no array is refused by its type


_decode_extension = extension_decoder({})
_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_array_or_refuse)
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(
    ToWorker, ext_hook=_decode_extension, dec_hook=_decode_other
)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(
    FromWorker, ext_hook=_decode_extension, dec_hook=_decode_other
)
