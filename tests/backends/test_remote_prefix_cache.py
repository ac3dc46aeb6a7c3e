"""Keys and values that a server kept of old weights do not meet the new ones (scenario C 32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web
from remote_runs import run, started, weights
from stand_in_server import StandIn
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm

from swift_rlx.types import PolicyVersion


class WatchedVllm(StandInVllm):
    """Notes what it was told at each pause."""

    pauses: list[dict[str, str]]

    async def _pause(self, request: web.Request) -> web.Response:
        self.pauses.append(dict(request.query))
        return await super()._pause(request)


def publish_twice(stand_in: StandIn, folder: Path) -> None:
    one, other = weights(folder, 1), weights(folder, 2)

    async def test() -> None:
        server = await started(stand_in, one)
        await server.publish(PolicyVersion(0, 1), other)
        await server.close()

    run(stand_in, test())


def test_a_vllm_clears_its_cache_with_each_version(tmp_path: Path) -> None:
    stand_in = WatchedVllm(tmp_path)
    stand_in.pauses = []
    publish_twice(stand_in, tmp_path)
    assert stand_in.pauses == [{"mode": "keep", "clear_cache": "true"}] * 2


def test_an_sglang_clears_its_cache_with_each_version(tmp_path: Path) -> None:
    stand_in = StandInSglang(tmp_path)
    publish_twice(stand_in, tmp_path)
    updates: list[dict[str, Any]] = [
        body for path, body in stand_in.bodies if path == "/update_weights_from_disk" and "model_path" in body
    ]
    assert [one["flush_cache"] for one in updates] == [True, True]
