"""Callbacks after the import of ms-swift's modules, for packages of the entry-point group `swift.plugins`.

Such a package declares `[project.entry-points."swift.plugins"] name = "package.module:register"` with

    def register(on_import):
        on_import("swift.trainers.trainer_factory", callback)   # callback(module); nothing heavy before it

The finder of `swift_rlx._boot` loads this module at the first import of a module inside `swift`. Standard
library only: whatever is imported here is imported in every process of ms-swift.

Invariants
- A fault of a plugin never stops ms-swift: it is printed once on stderr, kept in `Hooks.failures`, and
  ms-swift goes on without what failed. `SWIFT_PLUGINS_STRICT=1` raises PluginError instead.
- A plugin whose `register` fails leaves no callback behind.
- Callbacks run when the module's own code has run and before its importer sees it: by plugin name, then in
  the order in which the plugin asked for them. A module that is imported already gets its callback at once.
- `SWIFT_PLUGINS` chooses the plugins: unset means all, `0` or `none` no one, `a,b` those two.
- Another package called `swift` (OpenStack's object store) is left alone.

There is no lock: ms-swift imports modules of its own in `swift/__init__.py`, so plugins are loaded while the
import system holds its lock on `swift`, and every other thread that wants a module of it waits there.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, NamedTuple

from swift_rlx import _boot
from swift_rlx.errors import PluginError

GROUP = "swift.plugins"
CHOICE = "SWIFT_PLUGINS"
STRICT = "SWIFT_PLUGINS_STRICT"

Callback = Callable[[ModuleType], None]
OnImport = Callable[[str, Callback], None]


class Plugin(NamedTuple):
    """A plugin whose `register` has returned."""

    name: str
    target: str
    """Its entry point, `package.module:register`."""
    origin: str
    """The distribution that offers it, such as `swift-rlx 0.1.0`."""


class Hooks:
    """The plugins of one process and the callbacks they asked for.

    `plugins` are registered, by name; `failures` says by plugin name what went wrong. `builtin` is a plugin
    that is there even if no installed distribution declares it (a source tree on PYTHONPATH has no
    metadata).
    """

    def __init__(self, builtin: EntryPoint | None = None) -> None:
        self.plugins: dict[str, Plugin] = {}
        self.failures: dict[str, str] = {}
        self._builtin = builtin
        self._loaded = False
        self._off: str | None = None  # why no plugin was loaded at all
        self._callbacks: dict[str, list[tuple[Plugin, Callback]]] = {}
        self._busy: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that a plugin asked for, set to run the callbacks; None for any other."""
        self.load_plugins()
        if name not in self._callbacks or name in self._busy:
            return None
        self._busy.add(name)  # all finders are asked: ours comes back here, so may others that do the same
        try:
            return self._watched(name, _ask_finders(name, path, target))
        finally:
            self._busy.discard(name)

    def load_plugins(self) -> None:
        """Register the plugins, once and only while or after `swift` is imported.

        Raises PluginError in strict mode.
        """
        package = sys.modules.get("swift")
        if self._loaded or package is None:
            return
        self._loaded = True
        choice = os.environ.get(CHOICE, "").strip()
        if choice.lower() in ("0", "none"):
            self._off = f"{CHOICE}={choice} switches all plugins off"
        elif not _is_ms_swift(package):
            self._off = (
                "the package `swift` in this process is not ms-swift 4: it has no arguments/rlhf_args.py"
            )
        else:
            for point in self._chosen(choice):
                plugin = Plugin(point.name, point.value, _origin(point))
                self._guard(plugin, "registering", functools.partial(self._register, plugin, point))

    def why_not_live(self, name: str) -> str | None:
        """One sentence that says why the plugin `name` is not active in this process; None if it is."""
        finder = _boot.finder()
        if finder is None:
            return (
                "the import hook of swift-rlx is not in place: its .pth file is not read under `python -S`, "
                "`pip install --target`, PYTHONPATH and zip files; run `python -m swift_rlx rlhf ...`, "
                "or call swift_rlx._boot.install() before importing swift"
            )
        if not self._loaded:
            return "nothing of ms-swift has been imported in this process yet"
        reason = finder.swift_rlx or self._off or self.failures.get(name)
        if reason is None and name not in self.plugins:
            choice = os.environ.get(CHOICE, "")
            reason = f"{CHOICE}={choice} leaves it out" if choice else "no installed package offers it"
        return f"the plugin '{name}' of ms-swift is not active: {reason}" if reason else None

    def _chosen(self, choice: str) -> list[EntryPoint]:
        """The entry points to load, by name; a name that is unknown or ambiguous is reported and left out."""
        offered = self._offered()
        wanted = {part.strip() for part in choice.split(",")} - {""} or set(offered)
        chosen = []
        for name in sorted(wanted):
            points = offered.get(name, [])
            if len(points) == 1:
                chosen += points
            elif points:
                packages = " and ".join(f"{p.value} of {_origin(p)}" for p in points)
                self._report(
                    name, f"more than one package offers this name ({packages}): uninstall all but one"
                )
            else:
                names = ", ".join(sorted(offered)) or "none"
                self._report(name, f"{CHOICE}={choice} asks for it, no package offers it (there is: {names})")
        return chosen

    def _offered(self) -> dict[str, list[EntryPoint]]:
        """Installed entry points by name, one for each distinct target."""
        offered: dict[str, list[EntryPoint]] = {}
        try:
            points = list(entry_points(group=GROUP))
        except Exception as error:  # noqa: BLE001 (the metadata of some other package is broken)
            self._report(GROUP, "the installed packages cannot be listed", error)
            points = []
        if self._builtin is not None:
            points.append(self._builtin)
        for point in points:
            same_name = offered.setdefault(point.name, [])
            if all(point.value != other.value for other in same_name):
                same_name.append(point)
        return offered

    def _register(self, plugin: Plugin, point: EntryPoint) -> None:
        requests: list[tuple[str, Callback]] = []

        def on_import(name: str, callback: Callback) -> None:
            if not name.startswith("swift."):
                raise ValueError(f"on_import got the name '{name}': it takes modules inside 'swift.' only")
            if plugin.name in self.plugins:  # asked for after `register` had returned
                self._add(plugin, name, callback)
            else:
                requests.append((name, callback))

        point.load()(on_import)
        self.plugins[plugin.name] = plugin
        for name, callback in requests:
            self._add(plugin, name, callback)

    def _add(self, plugin: Plugin, name: str, callback: Callback) -> None:
        self._callbacks.setdefault(name, []).append((plugin, callback))
        module = sys.modules.get(name)
        if module is not None:
            self._guard(plugin, f"adapting {name}", functools.partial(callback, module))

    def _watched(self, name: str, spec: ModuleSpec | None) -> ModuleSpec | None:
        """Make the spec's loader run the callbacks after the module's code, once.

        The loader keeps its type (`inspect`, `runpy` and `pkgutil` look at it). It is copied, because some
        finders share one loader among all modules.
        """
        if spec is None:
            return None
        try:
            loader: Any = copy.copy(spec.loader)
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del vars(loader)["exec_module"]
                in_modules = sys.modules.get(name) is module
                execute(module)
                # a module may put another object in its own place, as ms-swift's lazy packages do
                self._run_callbacks(name, sys.modules.get(name, module) if in_modules else module)

            vars(loader)["exec_module"] = exec_module
            spec.loader = loader
        except Exception as error:  # noqa: BLE001 (a loader of unknown make)
            for plugin, _ in self._callbacks[name]:
                self._report(plugin.name, f"its loader {spec.loader!r} does not let {name} be adapted", error)
        return spec

    def _run_callbacks(self, name: str, module: ModuleType) -> None:
        for plugin, callback in self._callbacks[name]:
            self._guard(plugin, f"adapting {name}", functools.partial(callback, module))

    def _guard(self, plugin: Plugin, doing: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (code of a plugin)
            self._report(plugin.name, f"{plugin.target} of {plugin.origin} failed while {doing}", error)

    def _report(self, name: str, what: str, error: Exception | None = None) -> None:
        """Keep the fault and, the first time for this plugin, print it; raises PluginError in strict mode."""
        reason = what if error is None else f"{what}: {type(error).__name__}: {error}"
        known = self.failures.get(name)
        self.failures[name] = reason if known is None else f"{known}; {reason}"
        if os.environ.get(STRICT, "0") not in ("", "0"):
            raise PluginError(f"swift plugin '{name}': {reason}") from error
        if known is None and sys.stderr is not None:
            trace = "" if error is None else "".join(traceback.format_exception(error))
            sys.stderr.write(f"swift plugin '{name}' is left out, ms-swift goes on: {reason}\n{trace}")


def _is_ms_swift(package: ModuleType) -> bool:
    folders = getattr(package, "__path__", None) or ()
    return any(os.path.isfile(os.path.join(folder, "arguments", "rlhf_args.py")) for folder in folders)


def _origin(point: EntryPoint) -> str:
    return "no installed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _ask_finders(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


hooks = Hooks(EntryPoint("swift_rlx", "swift_rlx._plugin:register", GROUP))
