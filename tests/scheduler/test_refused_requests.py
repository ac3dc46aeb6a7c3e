"""Requests that no worker can do: the group ends with the reason, or the run does where it is the user's mistake."""

from __future__ import annotations

from collections import Counter

import pytest
from small_run import settings, train

from swift_rlx.errors import BackendRejected, ConfigError
from swift_rlx.scheduler import GroupOutcome
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript, Fault
from swift_rlx.types import DropReason


def test_what_the_user_asked_for_in_vain_ends_the_run_at_once():
    asked = Counter()

    class Refusing(FakeBackend):
        async def generate(self, request, on_progress=None):
            asked[request.prompt.index] += 1
            raise ConfigError("the scheduler returns 3 rows; use one that returns one")

    with pytest.raises(ConfigError, match=r"^the scheduler returns 3 rows; use one that returns one$"):
        train(settings(), lambda: [Refusing("worker-0"), Refusing("worker-1")], count=8)
    assert set(asked.values()) == {1}, "it is not tried again"


def test_a_group_without_answers_ends_with_the_first_error():
    def fault(request):
        return Fault(BackendRejected) if request.prompt.index == 3 else None

    seen = train(settings(group_size=2, min_members=2), lambda: [FakeBackend(script=FakeScript(fault=fault))])
    dropped = next(end for end in seen.ends if end.outcome is GroupOutcome.DROPPED)
    assert dropped.drop_reason is DropReason.TOO_FEW_ANSWERS
    assert "scripted fault of 0/3/0" in dropped.detail
