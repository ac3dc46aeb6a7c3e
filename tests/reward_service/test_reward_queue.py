"""Rows that wait: turns between tenants, batches of one reward, the bound, and who is dropped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_rlx.reward_service.fair_queue import Ask, FairQueue, QueueFull, Waiting
from swift_rlx.reward_service.wire import Row

T = TypeVar("T")


def run(job: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(job, 20)

    return asyncio.run(limited())


def ask(tenant: str, rows: int, reward: str = "r") -> Ask:
    reply = asyncio.get_running_loop().create_future()
    return Ask(tenant, reward, [Row(f"{tenant}{at}") for at in range(rows)], reply, "v1")


def texts(batch: list[Waiting]) -> list[str]:
    return [one.ask.rows[one.row].completion for one in batch]


def test_a_tenant_with_one_row_does_not_wait_for_anothers_thousand():
    async def job() -> list[str]:
        queue = FairQueue(5000)
        queue.put(ask("a", 1000))
        queue.put(ask("b", 1))
        queue.put(ask("c", 2))
        return texts(await queue.take(6, 0.0))

    assert run(job()) == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_a_batch_has_one_reward_and_the_other_comes_next():
    async def job() -> list[list[str]]:
        queue = FairQueue(100)
        queue.put(ask("a", 2, "r"))
        queue.put(ask("b", 2, "s"))
        queue.put(ask("a", 1, "s"))
        return [sorted(texts(await queue.take(10, 0.0))) for _ in range(2)]

    assert run(job()) == [["a0", "a1"], ["a0", "b0", "b1"]]


@settings(max_examples=60, deadline=None, database=None)
@given(
    asks=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.sampled_from("rs")), max_size=12),
    size=st.integers(1, 7),
)
def test_every_row_is_taken_once_and_no_batch_mixes_rewards(asks, size):
    async def job() -> None:
        queue = FairQueue(1000)
        made = [ask(*one) for one in asks]
        for one in made:
            queue.put(one)
        taken: Counter[tuple[int, int]] = Counter()
        while len(queue):
            batch = await queue.take(size, 0.0)
            assert 1 <= len(batch) <= size
            assert len({one.ask.reward for one in batch}) == 1
            taken.update((id(one.ask), one.row) for one in batch)
        assert taken == Counter({(id(one), row): 1 for one in made for row in range(len(one.rows))})

    run(job())


def test_rows_of_a_client_that_went_away_are_dropped():
    async def job() -> tuple[list[str], int]:
        queue = FairQueue(100)
        gone = ask("a", 3)
        queue.put(gone)
        queue.put(ask("a", 2))
        gone.reply.cancel()
        return texts(await queue.take(10, 0.0)), len(queue)

    assert run(job()) == (["a0", "a1"], 0)


def test_a_full_queue_takes_no_part_of_an_ask():
    async def job() -> int:
        queue = FairQueue(4)
        queue.put(ask("a", 3))
        with pytest.raises(QueueFull, match="3 rows wait, and 4 may"):
            queue.put(ask("b", 2))
        queue.put(ask("b", 1))
        return len(queue)

    assert run(job()) == 4


def test_rows_wait_for_company_and_a_full_batch_does_not():
    async def job() -> tuple[list[str], list[str]]:
        queue = FairQueue(100)
        queue.put(ask("a", 2))
        full = await queue.take(2, 1000.0)
        taking = asyncio.ensure_future(queue.take(2, 1000.0))
        queue.put(ask("b", 1))
        await asyncio.sleep(0)
        assert not taking.done()
        queue.put(ask("c", 1))
        return texts(full), texts(await taking)

    assert run(job()) == (["a0", "a1"], ["b0", "c0"])


def test_rows_that_may_end_a_worker_are_taken_one_by_one_and_first():
    async def job() -> list[list[str]]:
        queue = FairQueue(100)
        queue.put(ask("a", 2))
        suspects = await queue.take(2, 0.0)
        queue.put(ask("b", 1))
        queue.put_alone(suspects)
        return [texts(await queue.take(10, 1000.0)) for _ in range(2)] + [texts(await queue.take(10, 0.0))]

    assert run(job()) == [["a0"], ["a1"], ["b0"]]
