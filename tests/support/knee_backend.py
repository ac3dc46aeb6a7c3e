"""A fake worker whose answers share its speed."""

from __future__ import annotations

import asyncio

import numpy as np

from swift_rlx.backends import Capabilities, Health
from swift_rlx.types import Completion, FinishReason, PolicyVersion


class KneeBackend:
    """One iteration gives a token to every answer and takes `iteration_s(rows)`; `length(request)`: tokens."""

    capabilities = Capabilities(keep=True)

    def __init__(self, length, iteration_s, name="worker-0"):
        self.name = name
        self.latencies = []
        self._length = length
        self._iteration_s = iteration_s
        self._version = PolicyVersion()
        self._left = {}
        self._decoding = None

    async def generate(self, request, on_progress=None):
        loop = asyncio.get_running_loop()
        begin, ended = loop.time(), loop.create_future()
        count = self._length(request)
        self._left[request.request_id] = [count, ended]
        if self._decoding is None:
            self._decoding = loop.create_task(self._decode())
        await ended
        self.latencies.append(loop.time() - begin)
        steps = np.full(count, self._version.step, dtype=np.int32)
        zeros = np.zeros(count, dtype=np.int32)
        return Completion(
            zeros, zeros.astype(np.float32), steps, FinishReason.STOP, self._version.incarnation, self.name
        )

    async def _decode(self):
        while self._left:
            await asyncio.sleep(self._iteration_s(len(self._left)))
            for request_id, answer in list(self._left.items()):
                answer[0] -= 1
                if answer[0] <= 0:
                    del self._left[request_id]
                    answer[1].set_result(None)
        self._decoding = None

    async def abort(self, request_ids):
        """Answers are short; they come by themselves."""

    async def publish(self, version, payload):
        self._version = version

    async def health(self):
        return Health(self._version)

    async def close(self):
        """Nothing to free."""
