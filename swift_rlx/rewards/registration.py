"""The registry of rewards, and the decorator that adds to it.

@register_reward("short_answer")
def short_answer(completion: str, **columns) -> float:
    return 1.0 if len(completion) < 200 else 0.0
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from swift_rlx.errors import ConfigError
from swift_rlx.registry import Registry
from swift_rlx.rewards.origin import as_arguments, import_home
from swift_rlx.rewards.rate import RateLimits
from swift_rlx.rewards.spec import MARK, Reward, RewardMark, Scope, describe_reward

REWARDS = Registry(kind="reward", group="swift_rlx.rewards")

T = TypeVar("T")


def register_reward(
    name: str,
    *,
    version: str | None = None,
    scope: Scope = "group",
    thread_safe: bool = False,
    cache: bool = False,
    limits: RateLimits | None = None,
) -> Callable[[T], T]:
    """Make a function, a class or a callable object usable as `--reward_funcs name`.

    Forms, told apart by the name of the first parameter: `completion` (or `response`), one completion per
    call, returns a number or None; `completions` (or `responses`), all of them, returns one number or None
    each, in order. Either may be `async`. A class is constructed without arguments, or with `args=` the
    training arguments where its `__init__` takes them, and then called. Further parameters are columns of the
    data set.

    version: told apart in logs and stored scores; by default the version of the distribution that offers the
    reward. scope: what one call of a list-form reward should see. 'group': the completions of one prompt
    suffice, and where the call fails it is repeated row by row to find the rows to blame. 'batch': the values
    depend on the whole batch; it is called once with all rows of the batch (without the pipeline: of this rank) and is
    never split.
    thread_safe: a synchronous reward may run in several threads of the trainer's process at a time, instead of in
    processes of its own; it must not set alarms, and a call that hangs cannot be ended there. cache: a score depends
    on the prompt, the completion and the data set's columns alone, so that it is asked for once. limits: how fast the
    reward may be called.

    Returns a decorator that hands back its argument unchanged. Raises ConfigError for an unusable name or
    scope.
    """
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable() or " " in name:
        raise ConfigError(
            f"register_reward got the name {name!r}: a reward needs a name without spaces and slashes, as in "
            '@register_reward("short_answer")'
        )
    if scope not in ("group", "batch"):
        raise ConfigError(f"register_reward({name!r}) got scope {scope!r}: it is 'group' or 'batch'")
    if scope == "batch" and cache:
        raise ConfigError(
            f"register_reward({name!r}) got cache=True with scope 'batch': its scores depend on the other rows of the"
            " batch, so that a known one is of no use; drop one of the two"
        )
    # The caller's module and not the object's: an instance of a class from a package, configured in a user's
    # file, is that file's reward.
    caller = sys._getframe(1).f_globals
    provider = REWARDS.owner(caller["__name__"], caller.get("__file__"))

    def register(target: T) -> T:
        try:
            setattr(target, MARK, RewardMark(version, scope, thread_safe, cache, limits))
        except AttributeError:
            raise ConfigError(
                f"register_reward({name!r}) got {target!r}, which takes no attributes: register a function, "
                "a class "
                "or an object of a class of yours"
            ) from None
        REWARDS.register(name, target, provider=provider)
        return target

    return register


def resolve_reward(name: str, args: Any = None) -> Reward:
    """The reward that `--reward_funcs name` means, described but not yet constructed.

    Raises PluginError as `Registry.get` and `describe_reward` do.
    """
    target = REWARDS.get(name)
    [provider] = REWARDS.providers(name)
    return describe_reward(name, target, provider=provider, args=args)


def load_registered(
    name: str, module: str | None = None, file: str | None = None, args: dict[str, Any] | None = None
) -> Reward:
    """The reward that `origin_of_registered` describes, in another process."""
    import_home(module, file)
    return resolve_reward(name, as_arguments(args))
