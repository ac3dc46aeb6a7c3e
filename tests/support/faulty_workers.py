"""Workers of a random run: they die, hang and refuse by its plan, and are watched."""

from __future__ import annotations

import asyncio
import random

import numpy as np

from swift_rlx.errors import (
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    WorkerAbsent,
    WorkerDied,
)
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript, Fault
from swift_rlx.types import PolicyVersion


class WatchedBackend(FakeBackend):
    """Notes what is in flight. Can die: with what is on it, with its weights, and until it is started again."""

    def __init__(self, watch, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._watch = watch
        self._state, self.lives = "well", 0
        self._chance = random.Random(f"publish/{watch.plan.seed}/{self.name}")

    async def generate(self, request, *watch):
        self._raise_unless("well")
        key = (request.prompt.key, request.member)
        flying = self._watch.flying
        flying[key] += 1
        assert flying[key] == 1, f"{key} is generated twice at a time"
        self._watch.continued += request.prefix is not None
        if request.prompt.index == self._watch.plan.poison:
            self._clock.call_later(0.2, self.die)
        try:
            return await super().generate(request, *watch)
        finally:
            flying[key] -= 1

    def die(self):
        if self._state == "dead" or self.is_closed:
            return
        self._state, self._version = "dead", PolicyVersion(-1, 0)
        self._watch.deaths += 1
        self.lives += 1
        for answer in self._answers.values():
            if not answer.ended.done():
                answer.ended.set_exception(WorkerDied(f"{self.name} died"))

    async def publish(self, version, payload):
        self._raise_unless("well", "waits for weights")
        if self._chance.random() < self._watch.plan.failed_publishes:
            await asyncio.sleep(self._chance.choice([0.0, 1e6]))
            raise BackendUnavailable("no room for weights")
        life = self.lives
        await super().publish(version, payload)
        if self.lives != life:
            self._version = PolicyVersion(-1, 0)
            raise WorkerDied(f"{self.name} died while it took weights")
        self._state = "well"

    async def health(self):
        if self._state == "dead":
            self._state = "starting"
            self._clock.call_later(2.0, lambda life=self.lives: self._has_started(life))
        self._raise_unless("well", "waits for weights")
        return await super().health()

    def _has_started(self, life):
        if self.lives == life and self._state == "starting":
            self._state = "waits for weights"

    def _raise_unless(self, *states):
        if self._state not in states:
            raise WorkerAbsent(f"{self.name} {self._state}")


def faulty_script(plan, name: str, now) -> FakeScript:
    """How a worker of the plan behaves."""

    def fault(request):
        chance = random.Random(f"{plan.seed}/{request.prompt.index}/{request.member}")
        if chance.random() < plan.permanent:
            return Fault(BackendRejected, after_s=chance.random())
        if plan.is_ill(name, now()):
            return Fault(BackendUnavailable, after_s=0.05)
        if request.attempt == 1 and chance.random() < plan.stalls:
            return Fault(None, after_s=chance.uniform(0.0, 3.0), deaf=chance.random() < 0.3)
        if chance.random() < plan.transient and request.attempt <= chance.randint(1, 2):
            return Fault(chance.choice([BackendUnavailable, BackendTimeout]), after_s=chance.random())
        return None

    def health_fault():
        return BackendUnavailable("ill") if plan.is_ill(name, now()) else None

    def sampled(request, count):
        if not plan.environment or request.prompt.index % 3:
            return None
        return np.arange(count) % 4 != 3  # every fourth token is the environment's

    return FakeScript(
        plan.latency,
        fault=fault,
        health_fault=health_fault,
        max_tokens=50,
        publish_s=plan.publish_s,
        sampled=sampled,
        tell_s=plan.tell_s,
    )
