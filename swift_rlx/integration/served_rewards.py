"""Served rewards in `--reward_funcs`: an address in the place of a name.

The client is imported where an address is given: this module is loaded with ms-swift, whatever that is used for.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.registry import Provider
from swift_rlx.rewards import Reward, describe_reward


def is_address(reward: Any) -> bool:
    """Whether a reward of `--reward_funcs` is meant as an address."""
    return isinstance(reward, str) and "://" in reward


def reward_name(text: Any) -> Any:
    """The name under which a reward is logged: of a served one the last part of its address."""
    if not is_address(text):
        return text
    from swift_rlx.reward_service import parse_address

    return parse_address(text).name


def served_reward(text: str) -> Reward:
    """The reward behind an address, described by the service. Raises `ConfigError` where no replica can be used."""
    from swift_rlx.reward_service import ServiceReward, parse_address

    address = parse_address(text)
    target = ServiceReward(address)
    try:
        with ThreadPoolExecutor(1, "served-reward") as pool:  # a notebook has a running loop in this thread
            offer = pool.submit(asyncio.run, target.describe()).result()
    except RewardError as error:
        raise ConfigError(
            f"--reward_funcs {text} cannot be used: {error}; `swift-rlx reward serve --reward {address.name}` serves it"
        ) from error
    urls = ", ".join(endpoint.url for endpoint in address.endpoints)
    described = describe_reward(address.name, target, provider=Provider(f"service {urls}", offer.version))
    return replace(
        described,
        spec=replace(described.spec, required_columns=offer.required, optional_columns=offer.optional),
    )
