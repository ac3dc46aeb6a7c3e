"""Messages between a reward service and its worker processes: msgpack, each preceded by its length.

They go over a pair of connected sockets that is made before the process and passed to it as an open descriptor: there
is no address that a stranger could reach. A worker scores one batch at a time.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import msgspec

from swift_rlx.reward_service.wire import Offer, Row

_LENGTH = struct.Struct(">I")


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker: what it has to serve (`source_text.py`), and how reward models are loaded.

    `finder`: MODULE:FUNCTION, which finds rewards that no package or plugin file offers, and refuses names of several
    providers; empty: there are no others. `finders_own`: the names that it finds by itself.
    """

    sources: list[str]
    version: str
    loader: str
    loader_options: dict[str, str]
    sys_path: list[str]
    plugins: list[str]
    finder: str = ""
    finders_own: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True, tag=True):
    """Rows to be scored together."""

    reward: str
    rows: list[Row]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker's first message: its rewards are built."""

    offers: tuple[Offer, ...]


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """Or: why they cannot be."""

    reason: str


class Scores(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Task`: one score a row, None where it is unscored; `faults` by row."""

    scores: list[float | None]
    faults: dict[int, str] = {}


TO_WORKER: msgspec.msgpack.Decoder[Setup | Task] = msgspec.msgpack.Decoder(Setup | Task)
FROM_WORKER: msgspec.msgpack.Decoder[Ready | Unfit | Scores] = msgspec.msgpack.Decoder(Ready | Unfit | Scores)


def framed(message: Setup | Task | Ready | Unfit | Scores) -> bytes:
    """As it travels. Raises OverflowError or TypeError for what cannot."""
    data = msgspec.msgpack.encode(message)
    if len(data) >= 1 << 31:
        raise OverflowError(f"a message of {len(data)} bytes")
    return _LENGTH.pack(len(data)) + data


def read_blocking(connection: socket.socket) -> bytes | None:
    """The next message's bytes, in a worker; None: the service is gone."""
    try:
        head = _read_exactly(connection, _LENGTH.size)
        return None if head is None else _read_exactly(connection, _LENGTH.unpack(head)[0])
    except ConnectionError:
        return None


def send_blocking(connection: socket.socket, message: Ready | Unfit | Scores) -> bool:
    """Send a message of a worker; False: the service is gone."""
    try:
        connection.sendall(framed(message))
    except ConnectionError:
        return False
    return True


async def read(reader: asyncio.StreamReader) -> Ready | Unfit | Scores:
    """A worker's next message. Raises EOFError where the worker is gone or sends what is none."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return FROM_WORKER.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError, ValueError) as error:
        raise EOFError(str(error)) from error


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
