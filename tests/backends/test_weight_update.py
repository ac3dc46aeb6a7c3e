"""How the mode of publishing weights is chosen."""

from __future__ import annotations

import pytest

from swift_rlx.backends import WeightUpdate, resolve_weight_update
from swift_rlx.errors import ConfigError
from swift_rlx.testing.fake_backend import FakeBackend


def test_keep_is_chosen_where_every_worker_can_then_pin_and_drain_else():
    keeping, other = FakeBackend("a"), FakeBackend("b", mode=WeightUpdate.PIN)
    assert resolve_weight_update(None, [keeping]) is WeightUpdate.KEEP
    assert resolve_weight_update(None, [other]) is WeightUpdate.PIN
    assert resolve_weight_update(None, [keeping, other]) is WeightUpdate.DRAIN


@pytest.mark.parametrize("mode", [WeightUpdate.DRAIN, WeightUpdate.ABORT])
def test_drain_and_abort_need_nothing(mode):
    assert resolve_weight_update(mode, [FakeBackend(mode=WeightUpdate.DRAIN)]) is mode


def test_what_a_worker_lacks_is_refused_with_what_it_can():
    with pytest.raises(ConfigError, match="'keep' is refused: worker 'b' can pin, drain, abort"):
        resolve_weight_update(WeightUpdate.KEEP, [FakeBackend("b", mode=WeightUpdate.PIN)])
