"""Findings about the import hook: is it live in the processes that `swift` starts, and why not."""

import os

from swift_rlx.cli.checks import Check, fail, ok, warn
from swift_rlx.cli.environment import HOOK_FILE, Environment
from swift_rlx.cli.probe import Probe

REINSTALL = "run `pip install --force-reinstall --no-deps .` in the clone of swift-rlx"
WITHOUT_HOOK_FILE = "or run `python -m swift_rlx rlhf ...` instead of `swift rlhf ...`"


def hook_checks(environment: Environment, probe: Probe) -> tuple[Check, ...]:
    """The file, the live hook, the `swift` command, the environment variables, the other plugins."""
    if "interpreter" in probe.errors:
        detail = f"a fresh {environment.executable} cannot answer: {probe.errors['interpreter']}"
        remedy = f"install swift-rlx for this interpreter ({REINSTALL}) and repair what the message names"
        return (fail("interpreter", detail, remedy), _command(environment))
    return (
        _file(environment, probe),
        _live(environment, probe),
        _command(environment),
        *_variables(environment),
        *_plugins(probe),
    )


def _file(environment: Environment, probe: Probe) -> Check:
    files = environment.hook_files
    paths = ", ".join(files)
    if all(files.values()) and files:
        return ok("hook file", paths, paths=list(files))
    if files:
        old = ", ".join(path for path, current in files.items() if not current)
        return warn("hook file", f"{old} is not of this version of swift-rlx", REINSTALL, paths=list(files))
    if probe.found_at_start:
        return ok("hook file", "none, but the hook is there all the same", paths=[])
    detail = f"{HOOK_FILE} is in no folder that Python reads at its start"
    return fail("hook file", detail, f"{REINSTALL}, {WITHOUT_HOOK_FILE}", paths=[])


def _live(environment: Environment, probe: Probe) -> Check:
    facts = {"found_at_start": probe.found_at_start}
    if "swift" in probe.errors:
        detail = f"not checked: ms-swift does not import ({probe.errors['swift']})"
        return fail("hook", detail, "install or repair ms-swift first", **facts)
    if "hook" not in probe.answers:
        error = probe.errors.get("hook", "no answer")
        return fail("hook", f"not checked: {error}", REINSTALL, **facts)
    reason = probe.answers["hook"]["not_live"]
    if reason is None:
        return ok("hook", "live in a fresh interpreter", **facts)
    return fail("hook", reason, _remedy(environment, probe), **facts)


def _remedy(environment: Environment, probe: Probe) -> str:
    if not probe.found_at_start:
        return f"{REINSTALL}, {WITHOUT_HOOK_FILE}"
    if environment.plugins_choice:
        return "unset SWIFT_PLUGINS, or add swift_rlx to it"
    return f"{REINSTALL}; SWIFT_PLUGINS_STRICT=1 swift rlhf --help shows where it fails"


def _command(environment: Environment) -> Check:
    """`swift` starts its children with its own interpreter, so it must be the one of our environment."""
    found, here = environment.swift_command, os.path.join(environment.bin_folder, "swift")
    if found is None:
        return warn("swift command", "not on PATH", f"activate the environment, or call {here}", path=None)
    if os.path.realpath(os.path.dirname(found)) != os.path.realpath(environment.bin_folder):
        detail = f"{found} does not belong to {environment.executable}"
        remedy = f"activate the environment, or call {here}; swift-rlx belongs beside the `swift` you call"
        return warn("swift command", detail, remedy, path=found)
    return ok("swift command", found, path=found)


def _variables(environment: Environment) -> tuple[Check, ...]:
    choice, strict = environment.plugins_choice, environment.strict
    return (
        ok("SWIFT_PLUGINS", f"={choice}" if choice else "not set: every plugin is loaded", value=choice),
        ok(
            "SWIFT_PLUGINS_STRICT",
            f"={strict}" if strict else "not set: a plugin that fails is reported and left out",
            value=strict,
        ),
    )


def _plugins(probe: Probe) -> tuple[Check, ...]:
    hook = probe.answers.get("hook", {"plugins": {}, "failures": {}})
    failures = hook["failures"]
    return (
        *(
            ok(f"plugin {name}", origin, origin=origin)
            for name, origin in hook["plugins"].items()
            if name not in failures
        ),
        *(
            warn(f"plugin {name}", reason, "repair or uninstall its package; `swift` goes on without it")
            for name, reason in failures.items()
            if name != "swift_rlx"  # the check `hook` has it
        ),
    )
