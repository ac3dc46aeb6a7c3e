"""How another process finds a reward: nothing of it is sent but names, paths and plain arguments."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from swift_rlx.errors import PluginError
from swift_rlx.registry import Provider

if TYPE_CHECKING:
    from swift_rlx.rewards.spec import Reward

_ATTRIBUTE = "swift_rlx.rewards.origin:load_attribute"
_REGISTERED = "swift_rlx.rewards.registration:load_registered"


@dataclass(frozen=True)
class Origin:
    """`loader`: "module:function", which is called with `options` and returns the Reward."""

    loader: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Reward:
        """The reward, in whatever process this is. Raises what its import raises."""
        module, _, name = self.loader.partition(":")
        reward: Reward = getattr(importlib.import_module(module), name)(**self.options)
        return reward


def origin_of_registered(
    name: str, provider: Provider, args: Mapping[str, Any] | None = None
) -> Origin | None:
    """Of a name of our registry: an installed package's, or one that a file or module registered.

    `args`: plain data, for a class that takes them. None where it was registered by the program itself.
    """
    kind, _, where = provider.name.partition(" ")
    options: dict[str, Any] = {"name": name, "args": args}
    if kind == "file" and where:
        return None if is_main_file(where) else Origin(_REGISTERED, options | {"file": where})
    if kind == "module" and where:
        return None if where == "__main__" else Origin(_REGISTERED, options | {"module": where})
    return Origin(_REGISTERED, options)


def origin_of_attribute(name: str, target: Any, args: Mapping[str, Any] | None = None) -> Origin | None:
    """Of a function or class that another process can import; None for what was made elsewhere than in a module."""
    module, qualified = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if isinstance(target, functools.partial) or not module or not qualified or "<" in qualified:
        return None
    home = sys.modules.get(module)
    file = getattr(home, "__file__", None)
    if home is None or file is None or is_main_file(file):
        return None
    try:
        found = _attribute(home, qualified)
    except AttributeError:
        return None
    options = {
        "name": name, "module": module, "file": os.path.abspath(file), "qualified": qualified, "args": args,
    }  # fmt: skip
    return Origin(_ATTRIBUTE, options) if found is target else None


def load_attribute(
    name: str, module: str, file: str, qualified: str, args: dict[str, Any] | None = None
) -> Reward:
    """The reward that `origin_of_attribute` describes."""
    from swift_rlx.rewards.spec import describe_reward

    target = _attribute(import_home(module, file), qualified)
    return describe_reward(name, target, args=as_arguments(args))


def _attribute(home: Any, qualified: str) -> Any:
    for name in qualified.split("."):
        home = getattr(home, name)
    return home


def as_arguments(args: Mapping[str, Any] | None) -> SimpleNamespace | None:
    """The training arguments as far as they are plain data, as an object again."""
    return None if args is None else SimpleNamespace(**args)


def import_home(module: str | None, file: str | None) -> ModuleType | None:
    """The module by its name or, where there is none of that name, from its file."""
    if module is None:
        return None if file is None else import_file(file)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        if file is None:
            raise
        return import_file(file)


def is_main_file(file: str) -> bool:
    """Whether it is the program itself, which must not run again in another process."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and os.path.abspath(main) == os.path.abspath(file)


def import_file(file: str) -> ModuleType:
    """Import a Python file from outside of all packages, once; its folder can be imported from, as ms-swift has it."""
    path = os.path.abspath(file)
    name = f"_swift_rlx_file_{hashlib.sha256(path.encode()).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} cannot be imported as Python; rewards come from .py files")
    sys.path.insert(0, os.path.dirname(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
