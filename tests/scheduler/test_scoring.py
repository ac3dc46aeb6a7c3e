"""The time that scoring may take: a reward that hangs ends the run, a queue of slow ones does not."""

from __future__ import annotations

import asyncio

import pytest
from small_run import settings, train

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.types import Score


@pytest.mark.parametrize("stuck", [0, 5])
def test_a_reward_that_hangs_ends_the_run_and_names_prompt_and_limit(stuck):
    ended_s = []

    async def score(prompt, completions):
        if prompt.index == stuck:
            try:
                await asyncio.sleep(1e9)
            finally:
                ended_s.append(asyncio.get_running_loop().time())
        return [Score(1.0)] * len(completions)

    message = rf"the 2 answers to prompt \(0, {stuck}\) were not scored within 40 s"
    with pytest.raises(RewardError, match=message):
        train(settings(score_limit_s=40.0, group_size=2), score=score, count=500)
    assert 40.0 < ended_s[0] < 60.0


def test_groups_that_wait_for_each_other_in_a_slow_reward_are_not_taken_for_hanging():
    one_at_a_time = asyncio.Lock()

    async def score(prompt, completions):
        async with one_at_a_time:
            await asyncio.sleep(30.0)
        return [Score(1.0)] * len(completions)

    seen = train(settings(score_limit_s=40.0, batch_groups=8), score=score, count=16)
    assert seen.stats.trained == 16
    assert seen.times[0] > 4 * 40.0  # the last one waited that long


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="score_limit_s 0 is refused"):
        settings(score_limit_s=0.0)
