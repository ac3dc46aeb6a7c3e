"""For the tests of packages that plug in here: conformance suites, and a stand-in for an installed package.

from swift_rlx.testing import check_reward

def test_my_reward():
    check_reward("my_reward", examples=["some completion", "another one"])
"""

from swift_rlx.testing.fake_distribution import fake_distribution
from swift_rlx.testing.reward_suite import Example, check_reward

__all__ = ["Example", "check_reward", "fake_distribution"]
