"""A service that takes fewer calls at once than there are: all rows are scored, and a refusal is asked once (D 56)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from reward_services import ScriptedService, scored_by

from swift_rlx.errors import RewardError
from swift_rlx.reward_service import Row, ServiceReward, client, parse_address, replicas

PLACES, ROWS = 4, 200


def test_two_hundred_rows_pass_through_four_places_and_a_refusal_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside, turned_away = 0, 0

    async def answer(request: dict[str, Any]) -> Any:
        nonlocal inside, turned_away
        if request["rows"][0]["completion"] == "odd":
            return 400, b"no such row", {}
        if inside == PLACES:
            turned_away += 1
            return 503, {"detail": "full"}, {"Retry-After": "0"}
        inside += 1
        await asyncio.sleep(0.001)
        inside -= 1
        return scored_by("v1")(request)

    async def job() -> tuple[list[Any], int]:
        async with ScriptedService(answer) as service:
            reward = ServiceReward(parse_address(f"{service.url}/length"), limit_s=60.0)
            scores = await asyncio.gather(*(reward.score([Row("x" * (at % 7))]) for at in range(ROWS)))
            before = service.calls["/v1/score"]
            with pytest.raises(RewardError, match="status 400: no such row"):
                await reward.score([Row("odd")])
            return scores, service.calls["/v1/score"] - before

    monkeypatch.setattr(replicas, "RESTS_S", (0.01, 0.02))
    monkeypatch.setattr(client, "BUSY_S", 0.005)
    monkeypatch.setattr(client, "MAX_INFLIGHT", 2 * PLACES)
    scores, calls_of_the_odd_row = asyncio.run(asyncio.wait_for(job(), 90))
    assert scores == [[float(at % 7)] for at in range(ROWS)]
    assert turned_away, "it was flooded"
    assert calls_of_the_odd_row == 1
