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
    return [Job(SimpleNamespace(is_hopeless=False), number, Load(1, **load)) for number in range(count)]


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
    bad.group = SimpleNamespace(is_hopeless=True)
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


def test_a_worker_is_emptied_for_a_suspect_that_waits_while_the_others_go_on():
    router, waiting, sent, _ = lines(2, 2)
    one, other = router.workers
    for job in (first := jobs(4)):
        waiting.add(job)
    waiting.step()
    assert Counter(worker for _, worker in sent) == {"worker-0": 2, "worker-1": 2}
    suspects = jobs(2, is_suspect=True)
    for number, suspect in enumerate(suspects):
        suspect.member, suspect.avoid = 10 + number, {"worker-0"}
        waiting.add(suspect)
    for job in (later := jobs(4)):
        job.member += 20
        waiting.add(job)
    router.release(one, first[0].load)
    router.release(other, first[1].load)
    sent.clear()
    waiting.step()
    assert (sent, other.is_set_aside) == ([(20, "worker-0")], True)
    router.release(other, first[3].load)
    waiting.step()
    assert sent[1:] == [(10, "worker-1")]
    assert (one.is_set_aside, other.is_set_aside) == (False, False), "one is tried at a time"
    assert not router.has_room(later[0].load)
    cleared = router.cleared(other, suspects[0].load)
    waiting.step()  # the next suspect waits for the same worker
    assert (sent[2:], other.is_set_aside) == ([], True)
    router.release(other, cleared)
    waiting.step()
    assert sent[2:] == [(11, "worker-1")]
    router.release(other, suspects[1].load)
    waiting.step()
    assert [worker for _, worker in sent[3:]] == ["worker-1", "worker-1"]


def test_a_worker_that_was_set_aside_is_used_again_when_the_suspect_is_given_up():
    router, waiting, sent, given_up = lines(2)
    [running], [suspect], [other] = jobs(1), jobs(1, is_suspect=True), jobs(1)
    waiting.add(running)
    waiting.step()
    waiting.add(suspect)
    waiting.add(other)
    waiting.step()
    assert router.workers[0].is_set_aside
    suspect.group = SimpleNamespace(is_hopeless=True)
    waiting.step()
    assert (len(sent), given_up, router.workers[0].is_set_aside) == (2, [suspect], False)
