"""Facts of a healthy installation, for the tests of `swift-rlx doctor` to spoil."""

import dataclasses
from typing import Any

from swift_rlx.cli.environment import Environment
from swift_rlx.cli.probe import Probe


def environment(**changes: Any) -> Environment:
    """An environment in which everything is as it should be, except for `changes`."""
    healthy = Environment(
        executable="/env/bin/python",
        python="3.11.7",
        system="Linux x86_64",
        own_version="0.1.0",
        supported="ms-swift<4.7,>=4.5.2",
        packages={
            "ms-swift": "4.6.0",
            "torch": "2.13.0",
            "transformers": "5.0",
            "trl": "0.29",
            "peft": "0.20",
        },
        engines={"vllm": None, "sglang": "0.6"},
        extras={"math": {"math-verify": None}, "webui": {"gradio": "6.0"}},
        hook_files={"/env/lib/swift_rlx.pth": True},
        swift_command="/env/bin/swift",
        bin_folder="/env/bin",
        plugins_choice=None,
        strict=None,
        port="29500",
        port_problem=None,
    )
    return dataclasses.replace(healthy, **changes)


def reward(name: str, **changes: Any) -> dict[str, Any]:
    """A reward of a healthy package."""
    healthy = {
        "name": name,
        "providers": ["some-package 1.0"],
        "problem": None,
        "version": "1.0",
        "per_completion": False,
        "is_async": False,
        "scope": "group",
        "required_columns": [],
    }
    return healthy | changes


def probe(errors: dict[str, str] | None = None, found_at_start: bool = True, **answers: Any) -> Probe:
    """Answers of a healthy interpreter, except for `answers`; a step in `errors` has no answer."""
    healthy: dict[str, Any] = {
        "swift": "/env/lib/swift/__init__.py",
        "contract": {"clauses": 3, "breaches": [], "tested": ["4.5.3", "4.6.0"], "version_problem": None},
        "trainers": ["swift_rlx.trainers.RLOOTrainer"],
        "types": ["rloo", "reinforce_pp"],
        "rewards": [reward("format")],
        "devices": {"accelerators": [], "cores": 2, "backends": ["gloo"]},
        "hook": {"not_live": None, "plugins": {"swift_rlx": "swift-rlx 0.1.0"}, "failures": {}},
    }
    errors = errors or {}
    given = {name: answer for name, answer in (healthy | answers).items() if name not in errors}
    return Probe(found_at_start=found_at_start, answers=given, errors=errors)
