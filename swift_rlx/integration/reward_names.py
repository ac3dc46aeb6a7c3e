"""Rewards by name: ms-swift's own table and our registry, without either hiding the other.

`install` runs right after `swift.rewards.orm` was executed. It puts a stand-in for every reward that a package
offers into ms-swift's table, so that stock trainers can use them too, and does the same for rewards that a plugin
file registers later. Names that ms-swift has already stay ms-swift's.
"""

import importlib.util
from types import ModuleType
from typing import Any

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.rewards import REWARDS, CheckedReward, OnError, describe_reward

NEEDS_MATH_VERIFY = ("accuracy", "cosine")


class StandIn:
    """Takes a reward's place in ms-swift's table; ms-swift calls it with `args=` and gets the checked reward."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, args: Any = None, **_: Any) -> CheckedReward:
        return build_rewards([self.name], args)[0]


def install(module: ModuleType) -> None:
    """Offer our registry's rewards in `module.orms`."""
    table: dict[str, Any] = module.orms

    def offer(name: str) -> None:
        table.setdefault(name, StandIn(name))

    for name in REWARDS.names():
        offer(name)
    REWARDS.on_register(offer)


def check_reward_names(names: list[Any]) -> None:
    """Refuse what cannot be built, before the model is loaded.

    Raises:
        ConfigError: a name is given twice, or its optional dependency is missing.
        PluginError: a name is unknown, offered twice, or its package fails to import.
    """
    named = [name for name in names if isinstance(name, str)]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise ConfigError(f"--reward_funcs names {', '.join(twice)} twice; give each once, with --reward_weights")
    for name in named:
        if name in NEEDS_MATH_VERIFY and importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                f"the reward {name!r} needs the package math-verify, which is not installed;"
                " install it with: pip install 'swift-rlx[math]'"
            )
        _find(name)


def build_rewards(rewards: list[Any], args: Any) -> list[CheckedReward]:
    """A checked reward for each name, class, function or object of `rewards`, in order."""
    on_error = OnError.parse(getattr(args, "reward_on_error", "raise"))
    built = []
    for reward in rewards:
        if isinstance(reward, CheckedReward):
            built.append(reward)
            continue
        name, target, provider = _find(reward) if isinstance(reward, str) else _from_python(reward)
        built.append(CheckedReward.of(describe_reward(name, target, provider=provider, args=args), on_error))
    return built


def _find(name: str) -> tuple[str, Any, str]:
    from swift.rewards import orms

    stock = orms.get(name)
    is_stock = stock is not None and not isinstance(stock, StandIn)
    if is_stock and name in REWARDS.names():
        raise PluginError(
            f"the reward {name!r} is offered by ms-swift ({stock.__module__}) and by"
            f" {' and by '.join(REWARDS.providers(name))}; uninstall or rename one of them"
        )
    if is_stock:
        return name, stock, f"ms-swift ({stock.__module__})"
    own = [key for key, value in orms.items() if not isinstance(value, StandIn)]
    return name, REWARDS.get(name, also_known=own), " and ".join(REWARDS.providers(name))


def _from_python(reward: Any) -> tuple[str, Any, str]:
    name = getattr(reward, "__name__", type(reward).__name__)
    return name, reward, f"the Python object {reward!r:.80}"
