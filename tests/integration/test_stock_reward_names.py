"""The names that are read from ms-swift's source are those that it offers once it is imported."""

import pytest
from swift.rewards import orm

from swift_rlx.integration.stock_reward_names import stock_reward_names


@pytest.mark.versions
def test_the_names_are_those_of_the_table() -> None:
    assert {name for name, reward in orm.orms.items() if reward.__module__ == orm.__name__} == {
        *stock_reward_names()
    }
    assert {"accuracy", "format"} < {*stock_reward_names()}
