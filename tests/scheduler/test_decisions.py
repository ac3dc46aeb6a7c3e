"""Routing, retries, the ledger, group assembly and the order of prompts: decisions without a loop."""

from __future__ import annotations

import numpy as np
import pytest

from swift_rlx.errors import (
    BackendError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    SchedulingError,
    WorkerDied,
)
from swift_rlx.scheduler import IterableSource, PromptFeed, completion_seed, epoch_order
from swift_rlx.scheduler.groups import GroupBook, GroupState
from swift_rlx.scheduler.ledger import TokenLedger
from swift_rlx.scheduler.retry import RetryBudget, RetryPolicy
from swift_rlx.scheduler.routing import Load, Router, Worker, WorkerState
from swift_rlx.scheduler.time_limits import Limits
from swift_rlx.testing.fake_backend import FakeBackend
from swift_rlx.types import DropReason, Fate, PolicyVersion, Prompt


def prompt(index, epoch=0):
    return Prompt(index, np.zeros(1, dtype=np.int32), epoch)


def router(*slots, reserved=0.0):
    workers = [
        Worker(FakeBackend(f"worker-{number}"), count, reserved, PolicyVersion())
        for number, count in enumerate(slots)
    ]
    return Router(workers)


def names(*workers):
    return [worker and worker.name for worker in workers]


def test_the_worker_with_the_fewest_tokens_in_flight_is_taken():
    routes = router(4, 4)
    assert names(routes.reserve(Load(100)), routes.reserve(Load(10))) == ["worker-0", "worker-1"]
    assert names(routes.reserve(Load(10)), routes.reserve(Load(10))) == ["worker-1", "worker-1"]


def test_no_worker_gets_more_than_its_slots():
    routes = router(1, 1)
    taken = [routes.reserve(Load(1)) for _ in range(3)]
    assert names(*taken) == ["worker-0", "worker-1", None]
    routes.release(taken[1], Load(1))
    assert names(routes.reserve(Load(1))) == ["worker-1"]


def test_reserved_slots_stay_free_for_long_requests():
    routes = router(4, reserved=0.5)
    assert [routes.reserve(Load(1)) is None for _ in range(3)] == [False, False, True]
    assert [routes.reserve(Load(1, is_long=True)) is None for _ in range(3)] == [False, False, True]


def test_long_requests_may_use_all_slots():
    routes = router(4, reserved=0.5)
    assert [routes.reserve(Load(1, is_long=True)) is None for _ in range(5)] == [False] * 4 + [True]


def test_a_worker_to_be_avoided_is_taken_only_when_it_is_the_only_one():
    assert names(router(1, 1).reserve(Load(1), avoid={"worker-0"})) == ["worker-1"]
    assert names(router(1).reserve(Load(1), avoid={"worker-0"})) == ["worker-0"]


def test_a_worker_that_fails_three_times_without_success_gets_nothing():
    routes = router(4, 4)
    bad = routes.workers[0]
    assert [routes.failed(bad, is_dead=False) for _ in range(2)] == [False, False]
    routes.succeeded(bad)
    assert [routes.failed(bad, is_dead=False) for _ in range(3)] == [False, False, True]
    assert names(*(routes.reserve(Load(1)) for _ in range(4))) == ["worker-1"] * 4
    assert routes.failovers == 1


def test_a_dead_worker_gets_nothing_at_once():
    routes = router(4)
    assert routes.failed(routes.workers[0], is_dead=True)
    assert routes.reserve(Load(1)) is None
    assert routes.is_none_well


def test_a_readmitted_worker_gets_one_request_until_it_has_made_a_token():
    routes = router(4)
    (worker,) = routes.workers
    routes.failed(worker, is_dead=True)
    assert routes.ejection_s(worker) == 3.0
    routes.readmit(worker)
    assert names(routes.reserve(Load(1)), routes.reserve(Load(1))) == ["worker-0", None]
    assert routes.told(worker)
    assert not routes.told(worker)
    assert routes.reserve(Load(1)) is worker


def test_a_readmitted_worker_that_fails_before_it_has_answered_is_out_again_and_for_longer():
    routes = router(4)
    (worker,) = routes.workers
    routes.failed(worker, is_dead=True)
    routes.readmit(worker)
    routes.told(worker)
    assert routes.failed(worker, is_dead=False)
    assert routes.ejection_s(worker) == 9.0
    routes.readmit(worker)
    routes.succeeded(worker)
    assert not routes.failed(worker, is_dead=False)
    assert worker.state is WorkerState.OPEN


def test_being_out_counts_once_however_often_the_worker_is_asked():
    routes = router(4)
    (worker,) = routes.workers
    assert routes.failed(worker, is_dead=True)
    assert not routes.failed(worker, is_dead=True)
    assert routes.failovers == 1


def test_a_worker_that_fails_at_its_requests_is_asked_less_and_less_and_one_that_is_not_there_is_not():
    routes = router(4)
    (worker,) = routes.workers
    waits = []
    for _ in range(4):
        routes.eject(worker)
        waits.append(routes.ejection_s(worker))
        again = []
        for _ in range(3):
            routes.is_still_ill(worker)
            again.append(routes.again_s(worker))
        assert again == [min(waits[-1], 5.0)] * 3
        routes.readmit(worker)
    assert waits == [3.0, 9.0, 27.0, 30.0]
    routes.eject(worker)
    worker.ejections += 10_000  # some days
    assert routes.ejection_s(worker) == 30.0
    routes.succeeded(worker)
    routes.readmit(worker)
    routes.failed(worker, is_dead=True)
    assert routes.ejection_s(worker) == 3.0


def test_workers_that_were_readmitted_and_have_not_answered_are_not_well():
    routes = router(4, 4)
    for worker in routes.workers:
        routes.failed(worker, is_dead=True)
        routes.readmit(worker)
    assert routes.is_none_well
    routes.succeeded(routes.workers[1])
    assert not routes.is_none_well


def test_a_suspect_gets_a_worker_that_has_shown_itself_well_and_nobody_after_it_until_it_is_cleared():
    routes = router(4, 4)
    one, other = routes.workers
    suspect = Load(1, is_suspect=True)
    assert names(*(routes.reserve(suspect, proven=True) for _ in range(3))) == ["worker-0", "worker-1", None]
    assert routes.reserve(Load(1)) is None
    routes.told(one, is_first=True)
    routes.cleared(one)
    assert routes.reserve(Load(1, is_suspect=True, is_alone=True)) is None
    assert routes.reserve(suspect) is one
    routes.release(other, suspect)
    routes.failed(other, is_dead=True)
    routes.readmit(other)
    assert routes.reserve(suspect, proven=True) is None
    assert routes.reserve(suspect) is other


def test_hope_is_left_until_every_worker_has_failed_twice_and_one_comes_that_starts_or_is_idle():
    routes = router(1, 1)
    one, other = routes.workers
    for worker, hopeless in ((one, False), (other, False), (one, False), (other, True)):
        assert not routes.is_none_hopeful
        if not routes.eject(worker):
            routes.is_still_ill(worker)
        assert routes.is_none_hopeful is hopeless
    assert not routes.is_one_coming
    routes.starting(one)
    assert routes.is_one_coming
    routes.is_still_ill(one)
    assert not routes.is_one_coming
    routes.readmit(other)
    assert routes.is_one_coming
    routes.reserve(Load(1))
    assert not routes.is_one_coming


def test_a_slot_that_was_not_taken_cannot_be_given_back():
    routes = router(1)
    with pytest.raises(SchedulingError, match="'worker-0' gave back a slot that was not taken"):
        routes.release(routes.workers[0], Load(1))


@pytest.mark.parametrize("error", [BackendTimeout, BackendUnavailable, WorkerDied])
def test_what_another_worker_may_do_is_tried_again_up_to_the_limit(error):
    policy = RetryPolicy(2, Limits(10.0, 4.0, 3.0, 1.0))
    waits = [policy.wait_s(number, error("x"), chance=0.0) for number in (1, 2, 3)]
    assert waits == [0.1, 0.2, None]
    assert policy.wait_s(1, error("x"), chance=0.5) == pytest.approx(0.075)


@pytest.mark.parametrize("error", [BackendRejected, BackendError])
def test_what_no_worker_will_do_is_not_tried_again(error):
    assert RetryPolicy(2, Limits(10.0, 4.0, 3.0, 1.0)).wait_s(1, error("x"), chance=0.0) is None


def test_who_was_too_late_has_twice_the_time():
    policy = RetryPolicy(2, Limits(10.0, 4.0, 3.0, 1.0))
    assert policy.limits_of(0) == Limits(10.0, 4.0, 3.0, 1.0)
    assert policy.limits_of(2) == Limits(40.0, 16.0, 12.0, 1.0)


def test_every_slot_may_fail_once_and_be_tried_again_at_once():
    budget = RetryBudget()
    for _ in range(64):
        budget.sent(0.0)
    assert sum(budget.allows_retry(0.1, slots=64) for _ in range(200)) == 64


def test_an_outage_does_not_multiply_the_load():
    budget, retries = RetryBudget(), 0
    for tenth in range(1000):  # 100 s in which each of 8 slots fails ten times a second
        retries += sum(budget.allows_retry(tenth / 10, slots=8) for _ in range(8))
    assert retries < 8 + 100 * 8 / 10 * 1.2


def test_a_worker_that_fails_some_of_many_requests_gets_a_fifth_more():
    budget, sent, retries = RetryBudget(), 0, 0
    for second in range(200):
        for _ in range(100):
            budget.sent(second)
            sent += 1
            retries += budget.allows_retry(second, slots=8)
    assert 0.17 < retries / sent < 0.22


def test_every_token_has_one_fate():
    ledger = TokenLedger()
    ledger.arrived(10)
    ledger.settle(Fate.TRAINED, 6)
    ledger.settle(Fate.OVER_AGE, 1)
    assert (ledger.generated, ledger.tokens(Fate.IN_FLIGHT)) == (10, 3)
    assert sum(ledger.shares().values()) == pytest.approx(1.0)
    assert ledger.shares()[Fate.TRAINED] == pytest.approx(0.6)
    ledger.check(held=3)
    with pytest.raises(SchedulingError, match=r"3 of 10 tokens are counted as in flight, but .* hold 2"):
        ledger.check(held=2)


@pytest.mark.parametrize(("fate", "tokens"), [(Fate.TRAINED, 4), (Fate.TRAINED, -1), (Fate.IN_FLIGHT, 1)])
def test_tokens_that_are_not_there_cannot_be_settled(fate, tokens):
    ledger = TokenLedger()
    ledger.arrived(3)
    with pytest.raises(
        SchedulingError, match=f"{tokens} tokens cannot become '{fate.value}': 3 are in flight"
    ):
        ledger.settle(fate, tokens)


def test_a_group_goes_its_way_once():
    book = GroupBook(group_size=2, min_members=1)
    group = book.admit(prompt(0), 0)
    book.complete(group, 0, None)
    assert not group.has_ended_generating
    book.fail(group, 1, "rejected")
    assert group.has_ended_generating
    assert not group.is_hopeless
    book.scoring(group)
    book.ready(group)
    book.train(0)
    assert (book.trained, len(book), group.state) == (1, 0, GroupState.TRAINED)
    with pytest.raises(SchedulingError, match="group 0 ended twice"):
        book.train(0)


def test_illegal_transitions_are_refused():
    book = GroupBook(group_size=1, min_members=1)
    group = book.admit(prompt(0), 0)
    with pytest.raises(SchedulingError, match="cannot go from generating to ready"):
        book.ready(group)
    with pytest.raises(SchedulingError, match="cannot go from generating to trained"):
        book.train(0)
    book.complete(group, 0, None)
    with pytest.raises(SchedulingError, match=r"member 0 of prompt .* ended twice"):
        book.fail(group, 0, "late")
    book.scoring(group)
    with pytest.raises(SchedulingError, match="got an answer while scoring"):
        book.complete(group, 0, None)


def test_a_prompt_is_admitted_once_at_a_time():
    book = GroupBook(group_size=1, min_members=1)
    book.admit(prompt(0), 0)
    with pytest.raises(SchedulingError, match=r"prompt \(0, 0\) was admitted twice"):
        book.admit(prompt(0), 1)
    book.admit(prompt(0, epoch=1), 2)


def test_the_law_of_conservation_is_checked():
    book = GroupBook(group_size=1, min_members=1)
    book.drop(book.admit(prompt(0), 0), DropReason.TOO_FEW_ANSWERS)
    book.admit(prompt(1), 1)
    book.check(admitted=2)
    with pytest.raises(SchedulingError, match="3 prompts were admitted, but 0 trained, 1 were dropped"):
        book.check(admitted=3)
    assert [group.prompt.index for group in book.carry_over()] == [1]
    book.check(admitted=2)


def test_the_order_of_an_epoch_follows_from_seed_and_epoch_alone():
    assert epoch_order(50, seed=1, epoch=0) == epoch_order(50, seed=1, epoch=0)
    orders = [epoch_order(50, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_every_completion_has_its_own_seed():
    prompts = [prompt(index, epoch) for epoch in (0, 1) for index in range(50)]
    seeds = {completion_seed(run, one, member) for run in (0, 1) for one in prompts for member in range(8)}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_feed_hands_on_what_is_put_and_tells_of_it():
    calls, feed = [], PromptFeed([prompt(0)])
    feed.on_change(lambda: calls.append(1))
    assert feed.next().index == 0
    assert feed.next() is None
    assert not feed.is_exhausted
    feed.put([prompt(1)])
    feed.close()
    assert not feed.is_exhausted
    assert (feed.next().index, feed.is_exhausted, len(calls)) == (1, True, 2)
    with pytest.raises(SchedulingError, match="put into a feed after its end"):
        feed.put([prompt(2)])


def test_an_iterable_is_exhausted_with_its_last_prompt():
    source = IterableSource([prompt(0), prompt(1)])
    assert [source.next().index, source.is_exhausted, source.next().index] == [0, False, 1]
    assert source.is_exhausted
    assert source.next() is None
