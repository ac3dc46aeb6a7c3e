"""Requests in line: who is sent, who waits, and that nobody stands in anybody's way."""

from __future__ import annotations

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
