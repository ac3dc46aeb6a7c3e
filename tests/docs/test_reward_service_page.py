"""What docs/*/reward_service.md tells to send by curl is answered by a service as the page says."""

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import aiohttp
import doc_pages
import msgspec
import pytest
from reward_services import SETUP, FakeWorker, running_service, use_fake_workers

from swift_rlx.cli.main import build_parser
from swift_rlx.reward_service.frames import Scores
from swift_rlx.reward_service.service import ServiceConfig
from swift_rlx.reward_service.tenants import token_tenant

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "comment_bonus"
TOKEN = "a-token-of-the-test"


def curl(language: str) -> tuple[dict[str, str], str]:
    """Headers and body of the page's request, as the shell hands them to curl."""
    [block] = [
        one for one in doc_pages.blocks(doc_pages.read(language, "reward_service"), "bash") if "curl" in one
    ]
    words = shlex.split(block.replace("\\\n", " ").replace("$SWIFT_RLX_REWARD_KEY", TOKEN))
    assert words[:2] == ["curl", "http://127.0.0.1:8101/v1/score"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    name, _, value = options["-H"].partition(": ")
    return {name: value, "Content-Type": "application/x-www-form-urlencoded"}, options["-d"]


async def posted(headers: dict[str, str], body: str) -> tuple[int, Any]:
    config = ServiceConfig(
        msgspec.structs.replace(SETUP, version="v3"),
        tenants=[token_tenant({"SWIFT_RLX_REWARD_TOKEN": TOKEN})],
    )
    async with (
        running_service(config) as (url, _),
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/score", data=body.encode(), headers=headers) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("language", doc_pages.LANGUAGES)
def test_the_request_of_the_page_is_answered_as_it_says(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN))
    from swift_rlx_comment_bonus import comment_bonus

    async def score(worker: FakeWorker, reward: str, rows: list[Any]) -> Scores:
        return Scores([comment_bonus(row.completion, **row.columns) for row in rows])

    use_fake_workers(monkeypatch, names=("comment_bonus",))
    monkeypatch.setattr(FakeWorker, "score", score)
    headers, body = curl(language)
    status, reply = asyncio.run(asyncio.wait_for(posted(headers, body), 30))
    assert (status, reply) == (200, {"version": "v3", "scores": [0.5], "faults": {}})
    assert f"`{json.dumps(reply, separators=(',', ':'))}`" in doc_pages.read(language, "reward_service")
    refused = asyncio.run(asyncio.wait_for(posted({}, body), 30))
    assert refused[0] == 401


@pytest.mark.parametrize("language", doc_pages.LANGUAGES)
def test_the_services_of_the_page_can_be_started_as_it_says(language: str) -> None:
    lines = [
        shlex.split(line.rstrip("&"))
        for block in doc_pages.blocks(doc_pages.read(language, "reward_service"), "bash")
        for line in block.splitlines()
        if line.startswith("swift-rlx")
    ]
    assert lines
    for words in lines:
        assert build_parser().parse_args(words[1:]).reward == ["comment_bonus"]
