"""The real scheduler over real worker processes, one of which is killed in the middle of its answers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from worker_runs import until, weights, worker

from swift_rlx.cluster import hosted_process
from swift_rlx.errors import WeightMismatch
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.types import Fate, PolicyVersion, Prompt, SamplingParams, Score

PROMPTS, BATCH, GROUP = 24, 4, 2


async def score(prompt, completions):
    return [Score(1.0) for _ in completions]


def prompts():
    return [Prompt(index, np.array([1 + index % 10, 2], np.int32)) for index in range(PROMPTS)]


def prompts_of_which_some_begin_with(token, indices):
    return [
        replace(one, token_ids=np.array([token if one.index in indices else 1, 2], np.int32))
        for one in prompts()
    ]


async def kill(one, after_s=0.0):
    """Kill a worker that has answers in flight; seconds until this is known."""
    process = one._process
    await until(lambda: process._pending)
    await asyncio.sleep(after_s)
    one.probe_difference = None
    killed = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: not process.is_alive)
    return time.monotonic() - killed


async def train(folder, files, kill_at, max_tokens=20, staleness=2, asked=None, **options):
    """Train on everything; before batch `kill_at`, kill a worker with answers in flight. What was seen."""
    workers = [worker(folder, f"worker-{number}", **{"token_s": 0.004, **options}) for number in range(2)]
    await asyncio.gather(*(each.start() for each in workers))
    config = RolloutConfig(
        batch_groups=BATCH,
        group_size=GROUP,
        max_staleness=staleness,
        max_inflight=8,
        request_timeout_s=20.0,
        sampling=SamplingParams(max_tokens=max_tokens),
    )
    answers, versions, noticed_s = {}, [], None
    async with RolloutScheduler(config, workers, IterableSource(asked or prompts()), score) as scheduler:
        number = 0
        while (batch := await scheduler.next_batch()) is not None:
            for one in batch.groups:
                for member in one.group.members:
                    key = (member.prompt.index, member.member)
                    assert key not in answers
                    answers[key] = member.completion
            if number == kill_at:
                noticed_s = await kill(workers[0], after_s=0.4 if max_tokens > 20 else 0.0)
            version = scheduler.publish(files)
            await scheduler.published(version)
            versions.append(version)
            number += 1
        if kill_at is not None:  # the scheduler starts it again and gives it the weights, on its own
            await until(lambda: workers[0].start_number == 2 and workers[0].probe_difference is not None)
            versions.append((await workers[0].health()).version)
        stats = scheduler.statistics()
    return answers, versions, noticed_s, stats, workers


def test_a_killed_worker_costs_time_and_no_answer(tmp_path):
    files = weights(tmp_path, 1)
    answers, versions, noticed_s, stats, workers = asyncio.run(train(tmp_path, files, kill_at=1))
    assert noticed_s < 2
    assert sorted(answers) == [(index, member) for index in range(PROMPTS) for member in range(GROUP)]
    assert (stats.trained, stats.admitted, stats.open, sum(stats.dropped.values())) == (
        PROMPTS,
        PROMPTS,
        0,
        0,
    )
    assert stats.failures.keys() == {"WorkerDied"}
    assert sum(stats.tokens.values()) == stats.generated_tokens
    assert workers[0].start_number == 2
    assert (
        versions[-1] == versions[-2] == PolicyVersion(0, PROMPTS // BATCH)
    )  # it was given the current weights
    assert workers[0].probe_difference == 0.0
    assert Counter(each.worker for each in answers.values())["worker-1"] > 0
    trained, over_age = stats.tokens[Fate.TRAINED], stats.tokens[Fate.OVER_AGE]
    assert trained + over_age == sum(each.num_tokens for each in answers.values())


@pytest.mark.slow
def test_answers_that_were_broken_off_are_those_of_an_undisturbed_run(tmp_path):
    files = weights(tmp_path, 0)  # those that the workers start with: versions change, and no token
    long = {"max_tokens": 100, "staleness": 50, "token_s": 0.008}
    undisturbed, *_ = asyncio.run(train(tmp_path, files, None, **long))
    answers, _, noticed_s, stats, _ = asyncio.run(train(tmp_path, files, 1, **long))
    assert noticed_s < 2
    assert answers.keys() == undisturbed.keys()
    for key, answer in answers.items():
        np.testing.assert_array_equal(answer.token_ids, undisturbed[key].token_ids)
        np.testing.assert_array_equal(answer.logprobs, undisturbed[key].logprobs)
        assert (np.diff(answer.policy_steps) >= 0).all()
    assert stats.failures.keys() == {"WorkerDied"}
    total = sum(answer.num_tokens for answer in answers.values())
    assert stats.tokens[Fate.TRAINED] == stats.generated_tokens == total  # nothing told was made again
    assert stats.repeated_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("indices", [{6}, {6, 16}, {3, 4, 22, 23}], ids=str)
def test_prompts_that_kill_real_workers_are_dropped_and_the_workers_live_on(tmp_path, indices):
    files, asked = weights(tmp_path, 1), prompts_of_which_some_begin_with(7, indices)
    deadly = {"crash_token": 7, "fault_after": 5, "asked": asked}
    answers, _, _, stats, _ = asyncio.run(train(tmp_path, files, None, **deadly))
    assert {index for index, _ in answers} == set(range(PROMPTS)) - indices
    assert sum(stats.dropped.values()) == len(indices)
    assert stats.failures.keys() <= {"WorkerDied", "WorkerAbsent"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang_token", "stall_token"])
def test_a_worker_that_stops_or_forgets_in_the_middle_of_its_answers_costs_time_and_no_answer(
    tmp_path, fault, monkeypatch
):
    monkeypatch.setattr(hosted_process, "STOPPED_S", 1.0)
    files, limits = weights(tmp_path, 1), {"stall_limit_s": 2.0, "silence_limit_s": 5.0}
    disturbed = {fault: 7, "fault_after": 5, "once": True, **limits}
    answers, _, _, stats, _ = asyncio.run(train(tmp_path, files, None, **disturbed))
    assert sorted(answers) == [(index, member) for index in range(PROMPTS) for member in range(GROUP)]
    assert not sum(stats.dropped.values())
    assert stats.failures.keys() <= {"WorkerDied", "WorkerAbsent"}


def test_weights_that_are_not_served_end_the_run(tmp_path):
    files = weights(tmp_path, 1, probe_of=2)
    with pytest.raises(WeightMismatch, match=r"does not serve the weights 0\.1"):
        asyncio.run(train(tmp_path, files, kill_at=None))
