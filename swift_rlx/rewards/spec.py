"""What a reward is: read from its signature, before anything is constructed or called."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from swift_rlx.errors import PluginError
from swift_rlx.registry import Provider, one_line
from swift_rlx.rewards.origin import Origin
from swift_rlx.rewards.rate import RateLimits
from swift_rlx.rewards.source import SourceCall, is_source
from swift_rlx.rewards.versions import digest_of_source

Scope = Literal["group", "batch"]

MARK = "__swift_rlx_reward__"
ONE_COMPLETION = ("completion", "response")
ALL_COMPLETIONS = ("completions", "responses")


@dataclass(frozen=True)
class RewardMark:
    """What `register_reward` notes on its target."""

    version: str | None = None
    scope: Scope = "group"
    thread_safe: bool = False
    cache: bool = False
    limits: RateLimits | None = None


@dataclass(frozen=True)
class RewardSpec:
    """How a reward wants to be called.

    per_completion: called once per completion, not once with the list. required_columns: parameters without a
    default, beyond the first. bound_columns: fixed by functools.partial, so no column of that name is passed.
    thread_safe: may run in threads of the trainer's process. cache: its scores may be kept.
    """

    name: str
    provider: Provider
    version: str | None
    scope: Scope
    first_parameter: str
    per_completion: bool
    is_async: bool
    required_columns: tuple[str, ...]
    optional_columns: tuple[str, ...]
    bound_columns: frozenset[str]
    takes_any_column: bool
    thread_safe: bool = False
    cache: bool = False

    @property
    def label(self) -> str:
        """How messages name it: "reward 'x' (package 1.0)"."""
        return f"reward {self.name!r} ({self.provider})"


@dataclass(frozen=True)
class Reward:
    """A described reward. `target` is the function, class or object as it was offered.

    origin: how another process finds it; None where it cannot. limits: how fast it may be called.
    """

    spec: RewardSpec
    target: Any
    args: Any = None
    origin: Origin | None = None
    limits: RateLimits = field(default_factory=RateLimits)

    @property
    def version(self) -> str:
        """What scores now: a source's own word, or what was declared, or the distribution's, or the code's digest."""
        if isinstance(self.target, SourceCall):
            return str(self.target.source.version)
        return self.spec.version or self._digest

    @property
    def is_source(self) -> bool:
        """Whether its version may change while it is used."""
        return isinstance(self.target, SourceCall)

    @cached_property
    def _digest(self) -> str:
        return digest_of_source(self.target)

    def build(self) -> Callable[..., Any]:
        """The callable itself: a class is constructed, with `args=self.args` where its `__init__` takes that.

        Raises PluginError where the constructor fails (a missing dependency, a parameter that nobody
        supplies).
        """
        if not inspect.isclass(self.target):
            return self.target  # type: ignore[no-any-return]
        try:
            return self._construct()
        except Exception as error:
            raise PluginError(
                f"{self.spec.label} cannot be constructed: {one_line(error)}; its class is called without "
                "arguments, or with `args` where __init__ names that"
            ) from error

    def _construct(self) -> Callable[..., Any]:
        built: Callable[..., Any] = self.target(args=self.args) if takes_args(self.target) else self.target()
        return built


def describe_reward(
    name: str,
    target: Any,
    *,
    provider: Provider | str | None = None,
    args: Any = None,
    origin: Origin | None = None,
) -> Reward:
    """Read how `target` wants to be called; nothing is constructed or called.

    target: a function (also a lambda, a bound method, functools.partial), a class whose objects are callable,
    or such an object; ms-swift's ORM and AsyncORM classes are such classes; or a `RewardSource`. provider: named in
    messages; by default the module of the target.

    Raises PluginError: not callable, or its first parameter is not called `completion`, `response`,
    `completions` or `responses`, or a further parameter cannot be passed by keyword.
    """
    source = target if is_source(target) else None
    if source is not None:
        target = SourceCall(source)
    if provider is None:
        owner_of = target if source is None else source
        provider = f"module {getattr(owner_of, '__module__', None) or type(owner_of).__module__}"
    owner = provider if isinstance(provider, Provider) else Provider(provider)
    label = f"reward {name!r} ({owner})"
    function, bound = _unwrap_partials(target)
    first, *rest = _parameters(target, label)
    columns = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in bound]
    declared = source if source is not None else function
    mark: RewardMark = getattr(target, MARK, None) or getattr(declared, MARK, None) or RewardMark()
    per_completion = first.name in ONE_COMPLETION
    if per_completion and mark.scope == "batch":
        raise PluginError(f"{label} takes one {first.name!r} but asks for scope 'batch': take `completions`")
    spec = RewardSpec(
        name=name,
        provider=owner,
        version=mark.version or owner.version,
        scope=mark.scope,
        first_parameter=first.name,
        per_completion=per_completion,
        is_async=_is_async(function),
        required_columns=tuple(p.name for p in columns if p.default is p.empty),
        optional_columns=tuple(p.name for p in columns if p.default is not p.empty),
        bound_columns=bound,
        takes_any_column=any(p.kind is p.VAR_KEYWORD for p in rest),
        thread_safe=mark.thread_safe or getattr(declared, "thread_safe", False) is True,
        cache=mark.cache,
    )
    limits = mark.limits or getattr(declared, "limits", None)
    return Reward(spec, target, args, origin, limits if isinstance(limits, RateLimits) else RateLimits())


def callable_name(target: Any) -> str:
    """A name for a reward that was passed from Python: of the function, or of the object's class."""
    function, _ = _unwrap_partials(target)
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name).strip("<>")


def _unwrap_partials(target: Any) -> tuple[Any, frozenset[str]]:
    bound: set[str] = set()
    while isinstance(target, functools.partial):
        bound |= target.keywords.keys()
        target = target.func
    return target, frozenset(bound)


def _parameters(target: Any, label: str) -> list[inspect.Parameter]:
    """Parameters of a call, the completions first; all others can be passed by keyword."""
    parameters = _read_signature(target, label)
    first = parameters[0] if parameters else None
    if first is None or first.name not in (*ONE_COMPLETION, *ALL_COMPLETIONS):
        got = str(first.replace(annotation=first.empty, default=first.empty)) if first else "nothing"
        raise PluginError(
            f"{label} has {got!r} as its first parameter: call it 'completion' where the reward takes one "
            "completion, or 'completions' where it takes all of them"
        )
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise PluginError(f"{label} takes {first.name!r} by keyword only: it is passed by position")
    for parameter in parameters[1:]:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise PluginError(
                f"{label} takes {parameter.name!r} by position only: columns are passed by keyword"
            )
    return parameters


def _read_signature(target: Any, label: str) -> list[inspect.Parameter]:
    is_class = inspect.isclass(target)
    # A class itself is always callable: what counts is whether its objects are.
    if not callable(target) or (is_class and not any("__call__" in vars(base) for base in target.__mro__)):
        what = f"the class {target.__name__}, whose objects have no __call__" if is_class else repr(target)
        raise PluginError(f"{label} is {what}: offer a function, a class with __call__, or an object of one")
    try:
        signature = inspect.signature(target.__call__ if is_class else target)
    except (TypeError, ValueError) as error:
        raise PluginError(f"{label} has no readable signature: wrap it in a Python function") from error
    parameters = list(signature.parameters.values())
    return parameters[1:] if is_class else parameters  # without self


def _is_async(function: Any) -> bool:
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(call)


def takes_args(target: type) -> bool:
    """Whether a reward's class is constructed with the training arguments."""
    parameters = inspect.signature(target).parameters.values()
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == "args" and p.kind is not p.VAR_POSITIONAL) for p in parameters
    )
