"""Requests in line: who is sent, who waits, and that nobody stands in anybody's way."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from swift_rlx.scheduler.lines import Lines
from swift_rlx.scheduler.requests import Job
from swift_rlx.scheduler.routing import Load, Router, Worker
from swift_rlx.testing.fake_backend import FakeBackend
from swift_rlx.types import PolicyVersion


def jobs(count, **load):
    return [
        Job(
            SimpleNamespace(is_hopeless=False, has_witnesses=False, is_suspected=False),
            number,
            Load(1, **load),
        )
        for number in range(count)
    ]


def lines(*slots):
    router = Router(
        Worker(FakeBackend(f"worker-{number}"), count, 0.0, PolicyVersion())
        for number, count in enumerate(slots)
    )
    sent, given_up = [], []
    made = Lines(router, lambda job, worker: sent.append((job.member, worker.name)), given_up.append)
    return router, made, sent, given_up


def test_what_avoids_the_only_worker_with_room_keeps_its_place_and_holds_up_nobody():
    _, waiting, sent, _ = lines(1, 3)
    for job in jobs(5):
        if job.member < 2:
            job.avoid = {"worker-1"}
        waiting.add(job)
    waiting.step()
    assert sent == [(0, "worker-0"), (2, "worker-1"), (3, "worker-1"), (4, "worker-1")]
    assert [job.member for job in waiting._others] == [1]


def test_the_members_of_a_hopeless_group_are_given_up_without_a_slot():
    _, waiting, sent, given_up = lines(1)
    good, bad = jobs(2)
    bad.group = SimpleNamespace(is_hopeless=True, has_witnesses=False, is_suspected=False)
    waiting.add(good)
    waiting.add_first(bad)
    waiting.step()
    assert (sent, given_up, len(waiting)) == ([(0, "worker-0")], [bad], 0)


def test_on_a_worker_that_has_shown_nothing_yet_a_suspect_comes_after_the_others():
    router, waiting, sent, _ = lines(2)
    (worker,) = router.workers
    router.failed(worker, is_dead=True)
    router.readmit(worker)
    [suspect], [other] = jobs(1, is_suspect=True), jobs(1)
    other.member = 7
    waiting.add(suspect)
    waiting.add(other)
    waiting.step()
    assert sent == [(7, "worker-0")]
    router.release(worker, other.load)
    waiting.step()  # there is nobody else to show what the worker can do
    assert sent == [(7, "worker-0"), (0, "worker-0")]


def test_a_suspect_is_sent_where_all_others_make_tokens_and_nobody_follows_until_it_gets_further():
    router, waiting, sent, _ = lines(4)
    [worker] = router.workers
    running, later = jobs(2), jobs(2)
    suspects = jobs(2, is_suspect=True)
    for number, job in enumerate([*running, *later, *suspects]):
        job.member = number
    for job in running:
        waiting.add(job)
    waiting.step()
    for job in (*suspects, *later):
        waiting.add(job)
    assert router.told(worker, is_first=True) is False
    waiting.step()
    assert (len(sent), worker.is_set_aside) == (2, True), "one of two has made no token"
    assert router.told(worker, is_first=True) is True
    waiting.step()
    assert sent[2:] == [(4, "worker-0")]
    assert router.told(worker, is_first=True) is False, "it got no further than before"
    waiting.step()
    assert (len(sent), worker.is_set_aside) == (3, False), "one is tried at a time"
    router.cleared(worker)
    waiting.step()
    assert sent[3:] == [(5, "worker-0")]
    router.told(worker, is_first=True)
    router.cleared(worker)
    router.release(worker, Load(1), is_silent=False)
    waiting.step()
    assert sent[4:] == [(2, "worker-0")]


def test_a_worker_is_emptied_for_who_has_to_be_alone_while_the_others_go_on():
    router, waiting, sent, _ = lines(2, 2)
    one, other = router.workers
    for job in (first := jobs(4)):
        waiting.add(job)
    waiting.step()
    assert Counter(worker for _, worker in sent) == {"worker-0": 2, "worker-1": 2}
    [suspect] = jobs(1, is_suspect=True, is_alone=True)
    suspect.avoid = {"worker-0"}
    waiting.add(suspect)
    for job in (later := jobs(4)):
        job.member += 20
        waiting.add(job)
    router.release(one, first[0].load)
    router.release(other, first[1].load)
    router.told(other, is_first=True)
    sent.clear()
    waiting.step()
    assert (sent, other.is_set_aside) == ([(20, "worker-0")], True)
    router.release(other, first[3].load, is_silent=False)
    waiting.step()
    assert sent[1:] == [(0, "worker-1")]
    assert (one.is_set_aside, other.is_set_aside) == (False, False)
    assert not router.has_room(later[0].load)
    router.told(other, is_first=True)
    router.cleared(other)
    waiting.step()
    assert sent[2:] == [(21, "worker-1")]


def test_on_a_worker_that_has_shown_nothing_yet_a_witness_comes_after_those_that_were_on_none_that_died():
    router, waiting, sent, _ = lines(1)
    [worker] = router.workers
    [witness], fresh = jobs(1), jobs(2)
    witness.group.has_witnesses, witness.member = True, 7
    waiting.add(fresh[0])
    waiting.add_first(witness)
    waiting.add(fresh[1])
    waiting.step()
    assert sent == [(7, "worker-0")], "it had a slot before"
    router.failed(worker, is_dead=True)
    router.release(worker, witness.load)
    waiting.add_first(witness)
    fresh[0].group.has_witnesses = True  # by another member, since it is in line
    router.readmit(worker)
    waiting.step()
    assert sent[1:] == [(1, "worker-0")]


def test_a_witness_whose_sibling_is_a_suspect_is_one_too():
    _, waiting, sent, _ = lines(1)
    [witness], [other] = jobs(1), jobs(1)
    witness.group.has_witnesses = witness.group.is_suspected = True
    waiting.add(other)
    waiting.step()
    waiting.add(witness)
    waiting.step()
    assert (len(sent), witness.load.is_suspect, len(waiting)) == (1, True, 1)


def test_a_worker_that_was_set_aside_is_used_again_when_the_suspect_is_given_up():
    router, waiting, sent, given_up = lines(2)
    [running], [suspect], [other] = jobs(1), jobs(1, is_suspect=True), jobs(1)
    waiting.add(running)
    waiting.step()
    waiting.add(suspect)
    waiting.add(other)
    waiting.step()
    assert router.workers[0].is_set_aside
    suspect.group = SimpleNamespace(is_hopeless=True, has_witnesses=False, is_suspected=False)
    waiting.step()
    assert (len(sent), given_up, router.workers[0].is_set_aside) == (2, [suspect], False)
