"""Rewards by name: ms-swift's own table and our registry, without either hiding the other.

`install` runs right after `swift.rewards.orm` was executed. It puts a stand-in for every reward that a package
offers into ms-swift's table, so that stock trainers can use them too, and does the same for rewards that a plugin
file registers later. Names that ms-swift has already stay ms-swift's.
"""

import difflib
import importlib.util
from collections.abc import Iterable
from importlib.metadata import version
from types import ModuleType
from typing import Any

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.registry import Provider
from swift_rlx.rewards import (
    REWARDS,
    AsyncCheckedReward,
    CheckedReward,
    OnError,
    RewardSpec,
    callable_name,
    checked_reward,
    describe_reward,
)

NEEDS_MATH_VERIFY = ("accuracy", "cosine")
MS_SWIFT = "ms-swift"
Checked = CheckedReward | AsyncCheckedReward


class StandIn:
    """Takes a reward's place in ms-swift's table; ms-swift calls it with `args=` and gets the checked reward."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, args: Any = None, **_: Any) -> Checked:
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
        PluginError: a name is unknown, offered twice, its package fails to import, or it cannot be called as a reward.
    """
    named = [name for name in names if isinstance(name, str)]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise ConfigError(
            f"--reward_funcs names {', '.join(twice)} twice; give each once, with --reward_weights"
        )
    for name in named:
        if name in NEEDS_MATH_VERIFY and importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                f"the reward {name!r} needs the package math-verify, which is not installed;"
                " install it with: pip install math-verify"
            )
        target, provider = _find(name)
        describe_reward(name, target, provider=provider)


def import_reward_files(paths: Iterable[str]) -> None:
    """Import files of the user that register rewards, as `--external_plugins` does."""
    from swift.utils import import_external_file

    for path in paths:
        import_external_file(path)


def build_rewards(rewards: list[Any], args: Any) -> list[Checked]:
    """A checked reward for each name, class, function or object of `rewards`, in order."""
    on_error = OnError.parse(getattr(args, "reward_on_error", "raise"))
    built: list[Checked] = []
    for reward in rewards:
        if isinstance(reward, Checked):
            built.append(reward)
            continue
        if isinstance(reward, str):
            name, (target, provider) = reward, _find(reward)
        else:
            name, target, provider = callable_name(reward), reward, None
        built.append(checked_reward(describe_reward(name, target, provider=provider, args=args), on_error))
    return built


def sets_alarm(spec: RewardSpec) -> bool:
    """Whether it is one of ms-swift's that limit their time by a signal, which works in the main thread only."""
    return spec.name in NEEDS_MATH_VERIFY and spec.provider.name == MS_SWIFT


def _find(name: str) -> tuple[Any, Provider]:
    """The reward behind a name and who offers it: ms-swift's table, a plugin file that wrote into it, or ours."""
    from swift.rewards import orms

    own = {key: value for key, value in orms.items() if not isinstance(value, StandIn)}
    if name not in own:
        return _from_registry(name, own), REWARDS.providers(name)[0]
    module = getattr(own[name], "__module__", type(own[name]).__module__)
    owner = (
        Provider(MS_SWIFT, version(MS_SWIFT)) if module.startswith("swift.") else Provider(f"module {module}")
    )
    rivals = REWARDS.providers(name)
    if rivals:
        raise PluginError(
            f"reward {name!r} is offered by {owner} and by {' and by '.join(map(str, rivals))}; a name must have one"
            " provider: uninstall or rename one of them"
        )
    return own[name], owner


def _from_registry(name: str, own: dict[str, Any]) -> Any:
    try:
        return REWARDS.get(name)
    except PluginError as error:
        if REWARDS.providers(name):
            raise
        usable = sorted(key for key, value in own.items() if _is_reward(key, value))
        close = difflib.get_close_matches(name, usable, n=1)
        hint = f"; did you mean ms-swift's {close[0]!r}?" if close else ""
        raise PluginError(f"{error}; ms-swift's own: {', '.join(usable)}{hint}") from error


def _is_reward(name: str, target: Any) -> bool:
    """ms-swift keeps scorers for other commands in the same table."""
    try:
        describe_reward(name, target)
    except PluginError:
        return False
    return True
