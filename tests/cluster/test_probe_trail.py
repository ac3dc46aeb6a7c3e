"""A worker that takes no weights is found out although each of its log-probs is within the noise of the arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from swift_rlx.backends import Probe
from swift_rlx.cluster.probe_trail import ProbeTrail

TEXT = np.arange(48, dtype=np.int32)
STEPS = 400
TOLERANCE = 1.0  # that of bfloat16


class Run:
    """A policy that drifts by `step` nats at each token of the probe, and workers whose arithmetic has noise."""

    def __init__(self, step, noise, seed):
        self.chance = np.random.default_rng(seed)
        self.noise = noise
        start = -3.0 - self.chance.exponential(2.0, 47)
        pace = self.chance.standard_t(3, 47)  # some tokens move much more than others
        self.policy = [start + step * pace * number for number in range(STEPS)]

    def said(self, logprobs):
        """By an engine: heavy tails, and larger at rare tokens."""
        noise = self.chance.standard_t(3, 47) / np.sqrt(3.0) * np.abs(logprobs) / 5.0
        return (logprobs + self.noise * noise).astype(np.float32)

    def behind_at(self, worker):
        """The first version at which the trail sees a worker behind that serves version `worker(number)`."""
        trail = ProbeTrail()
        for number, logprobs in enumerate(self.policy):
            probe = Probe(TEXT, logprobs.astype(np.float32), TOLERANCE)
            if trail.stays_behind(probe, self.said(self.policy[worker(number)])):
                return number
        return None


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.06, 0.2])
@pytest.mark.parametrize("step", [0.0, 0.0003, 0.003, 0.05])
def test_a_worker_that_takes_every_version_is_never_suspected(step, noise):
    assert [Run(step, noise, seed).behind_at(lambda number: number) for seed in range(4)] == [None] * 4


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_worker_that_takes_none_is_found_long_before_one_difference_tells(noise):
    for seed in range(8):
        run = Run(0.001, noise, seed)
        found = run.behind_at(lambda number: 0)
        moved = np.abs(run.policy[found] - run.policy[0])
        assert moved.max() < TOLERANCE
        assert np.sqrt(np.mean(moved**2)) < 0.3


def test_a_worker_that_takes_none_from_some_version_on_is_found_too():
    run = Run(0.002, 0.01, 0)
    assert 150 < run.behind_at(lambda number: min(number, 150)) < 300


def test_the_noise_at_first_decides_how_far_the_policy_has_to_move():
    quiet, loud = (Run(0.002, noise, 0).behind_at(lambda number: 0) for noise in (0.005, 0.06))
    assert quiet < loud


def test_another_text_begins_anew():
    trail, still = ProbeTrail(), np.full(47, -3.0, np.float32)
    assert not trail.stays_behind(Probe(TEXT, still, TOLERANCE), still)
    assert not trail.stays_behind(Probe(TEXT + 1, still - 0.5, TOLERANCE), still - 0.5)
    assert trail.stays_behind(Probe(TEXT + 1, still - 1.0, TOLERANCE), still - 0.5)
