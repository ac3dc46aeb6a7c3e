"""The program of a worker process: builds an engine, and does with it what the trainer asks.

    python -m swift_rlx.cluster.host <descriptor of the channel> <name of the worker> <process id of the trainer>

The engine is built in a thread, so that signs of life go out from the first moment. It is taken for lost, and the
process ends, where building it raises, a call of it raises `WorkerDied`, one of its processes is stopped, it says
nothing for longer than it may (`stall_limit.py`): neither how it is nor, with requests on it, of any tokens; or it does
not come to an end with new weights. The process does not outlive the trainer (`trainer_watch.py`).
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
import sys
import time
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any

import numpy as np

from swift_rlx.backends import Engine, EngineSpec, Health
from swift_rlx.backends.engine import engine_factory
from swift_rlx.backends.progress import Draft, as_arrays
from swift_rlx.cluster.channel import Channel
from swift_rlx.cluster.messages import (
    BEAT_S,
    REPORT_S,
    TO_WORKER,
    Abort,
    Answer,
    AskHealth,
    AskLogprobs,
    Beat,
    Body,
    Call,
    Cancel,
    Close,
    Done,
    Dying,
    ErrorRecord,
    Failed,
    Generate,
    Generated,
    Logprobs,
    Progress,
    Publish,
    Ready,
    Reply,
    Serving,
    Start,
    ToWorker,
)
from swift_rlx.cluster.process_state import STOPPED_S, descendant_stopped_for, resident_mib
from swift_rlx.cluster.stall_limit import StallLimit
from swift_rlx.cluster.trainer_watch import end_after
from swift_rlx.errors import BackendRejected, BackendTimeout, EngineStalled, WorkerDied
from swift_rlx.types import Chunk

WATCH_S = 2.0
"""Seconds between two questions of the host to its engine."""


class Host:
    """Serves one engine over one channel until the trainer closes it."""

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self._channel = channel
        self._doing = "starting"
        self._engine: Engine
        self._calls: dict[int, tuple[Body, asyncio.Task[None]]] = {}
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._publishing = asyncio.Lock()
        self._news: dict[int, Draft] = {}
        self._begun: set[int] = set()
        self._silent_s = 0.0
        self._stall_limit: StallLimit
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """The exit status."""
        self._spawn(self._beat())
        start = await self._channel.receive()
        if not isinstance(start, Start):
            return 1
        sys.path[:] = start.sys_path
        try:
            self._engine = await asyncio.to_thread(self._load, start.spec)
        except Exception as error:  # noqa: BLE001 (foreign code)
            return await self._die(error)
        note = f"{resident_mib()} MiB resident, devices: {', '.join(start.spec.devices) or 'CPU'}"
        self._channel.send(Ready(self._engine.capabilities, note))
        self._doing = ""
        self._stall_limit = StallLimit(start.stall_limit_s, start.stall_floor_s)
        self._spawn(self._listen())
        self._spawn(self._report())
        self._spawn(self._watch())
        self._spawn(self._watch_processes())
        return await self._ended

    def _load(self, spec: EngineSpec) -> Engine:
        self._doing = f"importing the engine '{spec.name}'"
        factory = engine_factory(spec.name)
        self._doing = f"building the engine '{spec.name}' with {spec.model}"
        return factory(spec)

    async def _beat(self) -> None:
        while True:
            self._channel.send(Beat(self._doing))
            await asyncio.sleep(BEAT_S)

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, Call):
                if not self._num_answers:
                    self._silent_s = 0.0
                task = asyncio.get_running_loop().create_task(self._serve(message))
                self._calls[message.number] = (message.body, task)
            elif isinstance(message, Cancel):
                self._spawn(self._cancel(message.number))
            elif isinstance(message, Abort):
                self._spawn(self._abort(message.request_ids))
        self._end(0)  # the trainer let go of us

    async def _serve(self, call: Call) -> None:
        try:
            self._channel.send(Reply(call.number, await self._answer(call.number, call.body)))
        except Exception as error:  # noqa: BLE001 (foreign code)
            if not isinstance(error, (BackendRejected, WorkerDied)):
                traceback.print_exc()
            self._channel.send(Failed(call.number, ErrorRecord.of(error)))
            if isinstance(error, WorkerDied):
                self._end(await self._die(error))
        finally:
            del self._calls[call.number]
            self._news.pop(call.number, None)
            self._begun.discard(call.number)
            self._silent_s = 0.0
        if isinstance(call.body, Close):
            self._end(0)

    async def _answer(self, number: int, body: Body) -> Answer:
        if isinstance(body, Generate):
            answer = await self._engine.generate(body.request, partial(self._told, number))
            return Generated(as_arrays(answer))
        if isinstance(body, Publish):
            async with self._publishing:
                await self._publish(body)
            return Done()
        if isinstance(body, AskHealth):
            return Serving((await self._engine.health()).version)
        if isinstance(body, AskLogprobs):
            values = np.asarray(await self._engine.logprobs(body.token_ids), np.float32)
            self._stall_limit.word(0.0)
            return Logprobs(values)
        await self._engine.close()
        return Done()

    async def _publish(self, body: Publish) -> None:
        try:
            await asyncio.wait_for(self._engine.publish(body.version, body.files), body.limit_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            if isinstance(error, BackendTimeout):
                raise
            raise WorkerDied(
                f"the engine did not take weights {body.version} in {body.limit_s:.0f} s"
            ) from None

    @property
    def _num_answers(self) -> int:
        """Answers that the engine is making."""
        return sum(isinstance(body, Generate) for body, _ in self._calls.values())

    @property
    def _unread_tokens(self) -> int:
        """That the engine reads before the first tokens of answers that have none."""
        return sum(
            body.request.tokens_to_read
            for number, (body, _) in self._calls.items()
            if isinstance(body, Generate) and number not in self._begun
        )

    def _told(self, number: int, chunk: Chunk) -> None:
        """The engine made tokens; they are sent with those of the other answers."""
        self._stall_limit.word(self._silent_s)
        self._silent_s = 0.0
        if number in self._calls:
            self._begun.add(number)
            self._news.setdefault(number, Draft(chunk.begin)).add(as_arrays(chunk))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            news, self._news = self._news, {}
            chunks = ((number, draft.whole()) for number, draft in news.items())
            if answers := tuple((number, chunk) for number, chunk in chunks if chunk is not None):
                self._channel.send(Progress(answers))

    async def _cancel(self, number: int) -> None:
        """The trainer gave a request up. Publishing is not broken off: weights are applied or not."""
        body, task = self._calls.get(number, (None, None))
        if task is not None and isinstance(body, Generate):
            await self._abort((body.request.request_id,))
            task.cancel()

    async def _abort(self, request_ids: tuple[str, ...]) -> None:
        try:
            await self._engine.abort(request_ids)
        except Exception:  # noqa: BLE001 (foreign code; each request has a time limit of its own)
            traceback.print_exc()

    async def _watch(self) -> None:
        """Ask the engine how it is, while it is not busy with new weights, and see that it makes tokens."""
        tick_s, said = min(WATCH_S, self._stall_limit.seconds() / 2), ""
        while True:
            await asyncio.sleep(tick_s)
            limit_s, begin_s = self._stall_limit.seconds(self._unread_tokens), time.monotonic()
            if self._publishing.locked():
                self._silent_s = 0.0
                continue
            self._silent_s += tick_s  # by our own ticks: where we get no processor, the engine gets none
            if self._engine.capabilities.streams and self._num_answers and self._silent_s > limit_s:
                what = f"the engine made no token of {self._num_answers} answers for {limit_s:g} s"
                return self._end(await self._die(EngineStalled(what)))
            try:
                await asyncio.wait_for(self._healthy_or_publishing(), limit_s)
            except (TimeoutError, asyncio.TimeoutError):
                error = EngineStalled(f"the engine did not say for {limit_s:g} s how it is")
                return self._end(await self._die(error))
            except WorkerDied as error:
                return self._end(await self._die(error))
            except Exception as error:  # noqa: BLE001 (foreign code; who asks it will hear the same)
                if (text := repr(error)) != said:  # once, not every few seconds
                    traceback.print_exc()
                    said = text
            else:
                self._stall_limit.answered(time.monotonic() - begin_s)

    async def _watch_processes(self) -> None:
        """See that nobody has stopped one of the engine, whatever that is doing."""
        found = await descendant_stopped_for(os.getpid(), STOPPED_S)
        what = f"process {found} of the engine was stopped for {STOPPED_S:g} s"
        self._end(await self._die(WorkerDied(what)))

    async def _healthy_or_publishing(self) -> None:
        asking: asyncio.Future[Health] = asyncio.ensure_future(self._engine.health())
        try:
            while not (await asyncio.wait({asking}, timeout=BEAT_S))[0]:
                if self._publishing.locked():
                    return
            await asking
        finally:
            asking.cancel()

    async def _die(self, error: BaseException) -> int:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        sys.stderr.write(text)
        self._channel.send(Dying(ErrorRecord.of(error), text))
        await self._channel.flush()
        return 1

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_task_ended)

    def _side_task_ended(self, task: asyncio.Task[None]) -> None:
        self._side_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            self._end(1)


async def _main(descriptor: int) -> int:
    channel = await Channel.open(socket.socket(fileno=descriptor), TO_WORKER)
    status = await Host(channel).run()
    await channel.flush()
    return status


def main() -> None:
    """The program."""
    descriptor, trainer = int(sys.argv[1]), int(sys.argv[3])  # the name is for `ps`
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    end_after(trainer)
    sys.exit(asyncio.run(_main(descriptor)))


if __name__ == "__main__":
    main()
