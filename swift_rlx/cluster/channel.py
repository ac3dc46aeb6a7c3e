"""Messages over a pair of connected sockets, in order, each preceded by its length.

One pair per process that is started, made before it and passed to it as an open descriptor: there is no address
that a stranger, an older worker, or a second run could reach, and no file to remove. Whatever ends one side, the other
side reads the end of the stream.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from swift_rlx.cluster.messages import encode
from swift_rlx.errors import BackendRejected

Incoming = TypeVar("Incoming")

MAX_MESSAGE_BYTES = 1 << 30
_LENGTH = struct.Struct(">Q")
_BUFFER_BYTES = 1 << 20


class BrokenMessage(Exception):
    """The other side sent what is no message."""


class Channel(Generic[Incoming]):
    """One side. Used from one asyncio loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[Incoming],
        encoder: Callable[[Any], bytes] = encode,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._encoder = encoder

    @classmethod
    async def open(
        cls,
        connection: socket.socket,
        decoder: msgspec.msgpack.Decoder[Incoming],
        encoder: Callable[[Any], bytes] = encode,
    ) -> Channel[Incoming]:
        """Over a connected socket, which now belongs to the channel."""
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_BUFFER_BYTES)
        return cls(reader, writer, decoder, encoder)

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message; the queue has no bound of its own. To a side that is gone, nothing is sent.

        Raises `BackendRejected` for what cannot travel or is larger than `MAX_MESSAGE_BYTES`.
        """
        data = self._encoder(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise BackendRejected(
                f"{type(message).__name__} of {len(data)} bytes is refused: a message may have {MAX_MESSAGE_BYTES}"
            )
        if not self._writer.is_closing():
            self._writer.writelines((_LENGTH.pack(len(data)), data))

    async def receive(self) -> Incoming | None:
        """The next message; None: the other side is gone. Raises `BrokenMessage`."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MAX_MESSAGE_BYTES:
                raise BrokenMessage(f"a message of {length} bytes")
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise BrokenMessage(str(error)) from error

    async def flush(self) -> None:
        """Return when what was sent has left this process, or the other side is gone."""
        try:
            self._writer.transport.set_write_buffer_limits(0)
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        """Drop the connection; the other side reads its end."""
        self._writer.close()
