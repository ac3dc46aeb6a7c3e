"""Findings about rewards, one line a name. A broken reward is a WARN: it keeps nothing else from running."""

from typing import Any

from swift_rlx.cli.checks import Check, ok, warn
from swift_rlx.cli.environment import Environment
from swift_rlx.cli.probe import Probe


def reward_checks(environment: Environment, probe: Probe) -> tuple[Check, ...]:
    """Each reward with its origin and form; conflicts and broken packages with their cause."""
    if "rewards" not in probe.answers:
        missing = environment.packages["ms-swift"] is None
        error = "ms-swift is not installed" if missing else probe.errors.get("rewards", "see `interpreter`")
        return (warn("rewards", f"not listed: {error}", "repair what fails above first"),)
    return tuple(_check(reward) for reward in probe.answers["rewards"])


def _check(reward: dict[str, Any]) -> Check:
    name, problem = reward["name"], reward["problem"]
    data = {key: value for key, value in reward.items() if key != "name"}
    if problem is None:
        return ok(name, _form(reward), **data)
    what, separator, remedy = problem.rpartition("; ")
    if not separator:
        what, remedy = problem, "repair or uninstall its package"
    return warn(name, what, f"{remedy} (needed only with --reward_funcs {name})", **data)


def _form(reward: dict[str, Any]) -> str:
    """Such as `swift-rlx 0.1.0; one completion a call; async; needs solution`."""
    origin = " and ".join(reward["providers"])
    parts = [origin, "one completion a call" if reward["per_completion"] else "a list of completions a call"]
    if reward["version"] is not None and not origin.endswith(reward["version"]):
        parts.insert(1, f"version {reward['version']}")
    if reward["is_async"]:
        parts.append("async")
    if reward["required_columns"]:
        parts.append(f"needs {', '.join(reward['required_columns'])}")
    return "; ".join(parts)
