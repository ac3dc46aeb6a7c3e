"""`swift-rlx reward serve` as a user starts it: real worker processes, which end with it whatever ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from descendants import descendants, left_after
from reward_services import until

from swift_rlx.backends.remote_endpoint import ApiKey
from swift_rlx.errors import RewardError
from swift_rlx.reward_service import Row, ServiceReward, parse_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-test"
REWARDS = """
import os, re, time
from pathlib import Path
from swift_rlx import register_reward

@register_reward("odd", version="7")
def odd(completion: str, **columns) -> float:
    if completion == "raise":
        raise KeyError("on purpose")
    if completion == "hang":
        time.sleep(600)
    if completion == "exit":
        os._exit(3)
    if completion == "endless":
        Path(os.environ["TAKEN"]).touch()
        re.match("(a|aa)+$", "a" * 60 + "b")
    return float(len(completion))
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, as it says them."""
    (tmp_path / "odd_rewards.py").write_text(REWARDS, encoding="utf-8")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from swift_rlx.cli.main import main; raise SystemExit(main())"),
            *("reward", "serve", "--reward", "odd", "--version", "v3", "--port", "0", "--workers", "2"),
            *("--batch-limit-s", "3", "--external-plugins", str(tmp_path / "odd_rewards.py")),
        ],
        env=os.environ | {"SWIFT_RLX_REWARD_TOKEN": TOKEN, "TAKEN": str(tmp_path / "taken")},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving odd, version v3: --reward_funcs http://127.0.0.1:"), line
    yield process, line.split()[-1]
    process.kill()
    process.wait()


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return descendants(process.pid, "worker_program")


def test_a_service_scores_survives_odd_rows_and_ends_with_its_workers(service) -> None:
    process, address = service
    reward = ServiceReward(parse_address(address), ApiKey(TOKEN), limit_s=120.0)

    async def job():
        offer = await reward.describe()
        texts = ["a", "raise", "bbb", "hang", "exit", "endless", "cc"]
        answer = await reward.answer([Row(text) for text in texts])
        with pytest.raises(RewardError, match="needs its token"):
            await ServiceReward(parse_address(address)).score([Row("a")])
        return offer, answer

    offer, answer = asyncio.run(asyncio.wait_for(job(), 150))
    assert (offer.name, offer.version, answer.version) == ("odd", "v3", "v3")
    assert answer.scores == [1.0, None, 3.0, None, None, None, 2.0]
    assert {row: "on purpose" in reason for row, reason in answer.faults.items()} == {
        1: True,
        3: False,
        4: False,
        5: False,
    }
    assert "longer than 3 s" in answer.faults[3]
    with urlopen(address.rpartition("/")[0] + "/health") as health:
        assert json.load(health)["versions"] == {"odd": "v3"}
    left = workers(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert left_after(left, 30) == []


def test_a_worker_that_ends_while_it_has_nothing_to_do_costs_no_row(service) -> None:
    process, address = service
    reward = ServiceReward(parse_address(address), ApiKey(TOKEN), limit_s=120.0)
    idle = workers(process)
    for one in idle:
        one.kill()
    psutil.wait_procs(idle, 20)
    answer = asyncio.run(asyncio.wait_for(reward.answer([Row("abc")]), 120))
    assert (answer.scores, answer.faults) == ([3.0], {})
    assert not {one.pid for one in workers(process)} & {one.pid for one in idle}


def test_workers_do_not_outlive_a_service_that_is_killed(service, tmp_path: Path) -> None:
    process, address = service
    reward = ServiceReward(parse_address(address), ApiKey(TOKEN))

    async def hang():
        asking = asyncio.ensure_future(reward.answer([Row("endless")]))
        await until((tmp_path / "taken").exists)
        left = workers(process)
        process.kill()
        asking.cancel()
        return left

    left = asyncio.run(asyncio.wait_for(hang(), 100))
    assert left
    assert left_after(left, 60) == []
