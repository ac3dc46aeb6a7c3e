"""What `import swift_rlx` offers. A name added or taken away here is a change that users see."""

from __future__ import annotations

import pytest

import swift_rlx

PUBLIC = [
    "RLOOTrainer",
    "RLXConfig",
    "ReinforcePPBaselineTrainer",
    "ReinforcePPTrainer",
    "RolloutScheduler",
    "TrajectoryStore",
    "__version__",
    "register_reward",
]


def test_the_public_names_are_these():
    assert sorted(swift_rlx.__all__) == PUBLIC
    assert sorted(dir(swift_rlx)) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_and_says_where_it_is_from(name):
    value = getattr(swift_rlx, name)
    if name == "__version__":
        assert value.count(".") == 2
    else:
        assert value.__name__ == name
        assert value.__module__.startswith("swift_rlx.")
        assert value.__doc__


def test_an_unknown_name_is_refused_as_by_any_module():
    with pytest.raises(AttributeError, match="module 'swift_rlx' has no attribute 'RLTrainer'"):
        _ = swift_rlx.RLTrainer
    with pytest.raises(ImportError, match="cannot import name 'RLTrainer' from 'swift_rlx'"):
        from swift_rlx import RLTrainer  # noqa: F401
