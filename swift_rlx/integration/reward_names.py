"""Rewards by name: ms-swift's own table and our registry, without either hiding the other.

`install` runs right after `swift.rewards.orm` was executed. It puts a stand-in for every reward that a package
offers into ms-swift's table, so that stock trainers can use them too, and does the same for rewards that a plugin
file registers later. Names that ms-swift has already stay ms-swift's.
"""

import difflib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from types import ModuleType
from typing import Any

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.integration.served_rewards import is_address, reward_name, served_reward
from swift_rlx.registry import Provider, one_line
from swift_rlx.rewards import (
    REWARDS,
    AsyncCheckedReward,
    CheckedReward,
    OnError,
    Reward,
    callable_name,
    checked_reward,
    describe_reward,
)
from swift_rlx.rewards.origin import (
    Origin,
    as_arguments,
    import_home,
    is_main_file,
    origin_of_attribute,
    origin_of_registered,
)
from swift_rlx.rewards.source import is_source

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
    shown = [reward_name(name) for name in named]
    twice = sorted({name for name in shown if shown.count(name) > 1})
    if twice:
        raise ConfigError(
            f"--reward_funcs names {', '.join(twice)} twice; give each once, with --reward_weights"
        )
    for name in named:
        if is_address(name):
            served_reward(name)
            continue
        find_reward(name)


def find_reward(name: str, args: Any = None) -> Reward:
    """The reward of ms-swift's table, or of ours, that the name means. Raises as `check_reward_names`."""
    if name in NEEDS_MATH_VERIFY and importlib.util.find_spec("math_verify") is None:
        raise ConfigError(
            f"the reward {name!r} needs the package math-verify, which is not installed;"
            " install it with: pip install math-verify"
        )
    target, provider = _find(name)
    return describe_reward(name, target, provider=provider, args=args)


def import_reward_files(paths: Iterable[str]) -> None:
    """Import files of the user that register rewards, as ms-swift does. Raises `PluginError` for one that fails."""
    from swift.utils import import_external_file

    for path in paths:
        try:
            import_external_file(path)
        except Exception as error:  # the user's own code
            raise PluginError(
                f"--external-plugins {path} cannot be imported: {one_line(error)}; mend that file"
            ) from error


def build_rewards(rewards: list[Any], args: Any, on_error: OnError | None = None) -> list[Checked]:
    """A checked reward for each name, class, function or object of `rewards`, in order.

    `on_error`: None: that of `args`.
    """
    on_error = on_error or OnError.parse(getattr(args, "reward_on_error", "raise"))
    return [checked_reward(reward, on_error) for reward in described_rewards(rewards, args)]


def described_rewards(rewards: list[Any], args: Any) -> list[Reward]:
    """Each name, class, function or object of `rewards` described, in order, and how another process finds it."""
    return [_described(reward, args) for reward in rewards]


def _described(reward: Any, args: Any) -> Reward:
    if is_address(reward):
        return served_reward(reward)
    if not isinstance(reward, str):
        name = reward.name if is_source(reward) else callable_name(reward)
        return describe_reward(
            name, reward, args=args, origin=origin_of_attribute(name, reward, plain_arguments(args))
        )
    target, provider = _find(reward)
    if provider in REWARDS.providers(reward):
        origin = origin_of_registered(reward, provider, plain_arguments(args))
    else:
        origin = _origin_in_ms_swift(reward, target, args)
    return describe_reward(reward, target, provider=provider, args=args, origin=origin)


def _origin_in_ms_swift(name: str, target: Any, args: Any) -> Origin | None:
    """Of ms-swift's own, or of one that a plugin file wrote into its table."""
    options: dict[str, Any] = {"name": name, "args": plain_arguments(args)}
    module = _module_of(target)
    if not module.startswith("swift."):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or is_main_file(file):
            return None
        options |= {"module": module, "file": os.path.abspath(file)}
    return Origin("swift_rlx.integration.reward_names:load_from_ms_swift", options)


def load_from_ms_swift(
    name: str, module: str | None = None, file: str | None = None, args: dict[str, Any] | None = None
) -> Reward:
    """The reward of ms-swift's table, in another process; a plugin file that writes it is imported before."""
    import_home(module, file)
    target, provider = _find(name)
    return describe_reward(name, target, provider=provider, args=as_arguments(args))


def plain_arguments(args: Any) -> dict[str, Any] | None:
    """The training arguments that are numbers, texts, or lists of these: what a reward in another process gets."""
    if args is None:
        return None
    return {name: value for name, value in vars(args).items() if is_plain(value)}


def is_plain(value: Any) -> bool:
    """Whether it is a number, a text, None, or a list of these."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def _module_of(target: Any) -> str:
    return str(getattr(target, "__module__", type(target).__module__))


def _find(name: str) -> tuple[Any, Provider]:
    """The reward behind a name and who offers it: ms-swift's table, a plugin file that wrote into it, or ours."""
    from swift.rewards import orms

    own = {key: value for key, value in orms.items() if not isinstance(value, StandIn)}
    if name not in own:
        return _from_registry(name, own), REWARDS.providers(name)[0]
    module = _module_of(own[name])
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
