"""One registry for everything that other packages add by name: rewards now, rollout backends later.

A name comes from an entry point of an installed distribution, or from a `register` call (a plugin file, a
notebook).

Invariants
- Nothing of a package is imported before one of its names is asked for.
- A name belongs to one provider. Where two offer it, asking for that name is an error that names both; no
  other name is affected.
- A package that fails to import is reported when its name is asked for, and by `broken`; it disturbs no
  other.
- The same provider may register its name again and replaces it (a plugin file imported twice, a notebook
  cell).

Names are registered at import time by one thread; there is no lock.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from swift_rlx.errors import PluginError


@dataclass(frozen=True)
class Provider:
    """Where a name comes from: a distribution with its version, or a file or module that registered it."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


@dataclass(frozen=True)
class BrokenOffer:
    """A name whose package is installed but does not load; `cause` is one line."""

    name: str
    provider: Provider
    cause: str

    def __str__(self) -> str:
        return f"{self.name!r} ({self.provider}: {self.cause})"


@dataclass(frozen=True)
class _Offer:
    provider: Provider
    entry_point: EntryPoint | None = None
    value: Any = None

    def load(self) -> Any:
        return self.value if self.entry_point is None else self.entry_point.load()


class Registry:
    """Names of one kind of plugin.

    kind: the word used in messages, e.g. 'reward'. group: the entry-point group, e.g. 'swift_rlx.rewards'.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._registered: dict[str, dict[Provider, _Offer]] = {}
        self._scanned: dict[str, dict[Provider, _Offer]] | None = None
        self._callbacks: list[Callable[[str], None]] = []

    def register(self, name: str, obj: Any, *, provider: Provider | str) -> None:
        """Offer `obj` under `name`; the same provider replaces what it offered before."""
        owner = provider if isinstance(provider, Provider) else Provider(provider)
        self._registered.setdefault(name, {})[owner] = _Offer(owner, value=obj)
        for callback in self._callbacks:
            callback(name)

    def get(self, name: str) -> Any:
        """The object behind `name`, its package imported now if it was not yet.

        Raises PluginError: nobody offers the name (the message lists what there is and what is broken), two
        providers offer it, or its package fails to import.
        """
        offers = self._offers(name)
        if not offers:
            broken = self.broken()  # imports every package, which may register further names
            offers = self._offers(name)
            if not offers:
                raise PluginError(self._unknown(name, broken))
        if len(offers) > 1:
            both = " and by ".join(sorted(str(provider) for provider in offers))
            raise PluginError(
                f"{self.kind} {name!r} is offered by {both}; a name must have one provider: uninstall all "
                "but one, "
                "or rename those that are your own"
            )
        [offer] = offers.values()
        return self._load(name, offer)

    def names(self) -> tuple[str, ...]:
        """All names, sorted; nothing is imported."""
        return tuple(sorted({*self._entry_points(), *self._registered}))

    def providers(self, name: str) -> tuple[Provider, ...]:
        """Who offers `name`: none for an unknown name, more than one for a conflict."""
        return tuple(sorted(self._offers(name), key=str))

    def broken(self) -> tuple[BrokenOffer, ...]:
        """Every entry point of the group that does not load. Imports all packages of the group."""
        found = []
        for name, offers in sorted(self._entry_points().items()):
            for offer in offers.values():
                try:
                    self._load(name, offer)
                except PluginError as error:
                    found.append(BrokenOffer(name, offer.provider, one_line(error.__cause__ or error)))
        return tuple(found)

    def on_register(self, callback: Callable[[str], None]) -> None:
        """Call `callback(name)` for every registered name: those of before at once, later ones as they come.

        Names of entry points are not reported; `names` has them.
        """
        self._callbacks.append(callback)
        for name in tuple(self._registered):
            callback(name)

    def refresh(self) -> None:
        """Forget which distributions were installed; the next question reads them again."""
        self._scanned = None

    def owner(self, module: str, file: str | None = None) -> Provider:
        """The provider that code in `module` (at path `file`) registers for.

        A module of a package that has entry points in this group belongs to that distribution, so that a
        decorated function which is also an entry point is one offer. Otherwise the file, or the module where
        there is none.
        """
        shared = {
            offer.provider: _shared_parts(module, offer.entry_point.value)
            for offers in self._entry_points().values()
            for offer in offers.values()
            if offer.entry_point is not None
        }
        nearest = max(shared, key=lambda provider: shared[provider], default=None)
        if nearest is not None and shared[nearest]:
            return nearest
        return Provider(f"module {module}" if file is None else f"file {file}")

    def _offers(self, name: str) -> Mapping[Provider, _Offer]:
        # Of one provider's two offers the entry point counts: it is the same whether or not it was imported
        # before.
        return {**self._registered.get(name, {}), **self._entry_points().get(name, {})}

    def _entry_points(self) -> dict[str, dict[Provider, _Offer]]:
        if self._scanned is None:
            self._scanned = {}
            for entry_point in entry_points(group=self.group):
                provider = _distribution(entry_point)
                self._scanned.setdefault(entry_point.name, {})[provider] = _Offer(provider, entry_point)
        return self._scanned

    def _load(self, name: str, offer: _Offer) -> Any:
        try:
            return offer.load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{self.kind} {name!r} from {offer.provider} does not load: {one_line(error)}; repair or "
                "uninstall "
                "that package"
            ) from error

    def _unknown(self, name: str, broken: tuple[BrokenOffer, ...]) -> str:
        names = self.names()
        close = difflib.get_close_matches(name, names, n=3)
        known = ", ".join(f"{each!r} ({' and '.join(map(str, self.providers(each)))})" for each in names)
        parts = [f"unknown {self.kind} {name!r}"]
        if close:
            parts.append(f"did you mean {' or '.join(map(repr, close))}?")
        parts.append(f"known: {known or 'none'}")
        if broken:
            parts.append(f"installed but broken: {', '.join(map(str, broken))}")
        parts.append(
            f"a {self.kind} in a file of your own needs --external_plugins FILE,"
            f" and @register_{self.kind}({name!r}) in that file"
        )
        return "; ".join(parts)


def one_line(error: BaseException) -> str:
    """Type and message of an error on one line, for use inside another message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shared_parts(module: str, entry_point_value: str) -> int:
    """How many leading parts two dotted module paths have in common (packages may share a namespace)."""
    other = entry_point_value.partition(":")[0].strip()
    count = 0
    for mine, theirs in zip(module.split("."), other.split("."), strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _distribution(entry_point: EntryPoint) -> Provider:
    fallback = Provider(f"entry point {entry_point.value!r}")
    if entry_point.dist is None:
        return fallback
    try:
        metadata = entry_point.dist.metadata
    except Exception:  # noqa: BLE001 - a half-removed distribution must not hide the others
        return fallback
    fields = {key: metadata[key] for key in ("Name", "Version") if key in metadata}
    return Provider(fields["Name"], fields.get("Version")) if "Name" in fields else fallback
