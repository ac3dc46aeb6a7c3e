"""What `swift-rlx doctor` asks of the ms-swift in its process; answers are plain data.

Every function imports what it needs when it is called and lets errors through.
"""

import importlib
import inspect
from importlib.metadata import version
from typing import Any

from swift_rlx.errors import RlxError
from swift_rlx.integration.algorithm_table import ALGORITHMS, NAMES
from swift_rlx.registry import Provider


def import_ms_swift() -> str:
    """Import ms-swift; where it lies."""
    import swift

    return str(swift.__file__)


def contract_state() -> dict[str, Any]:
    """Number of clauses, those that are broken, tested releases, and what is wrong with the installed one."""
    from swift_rlx.integration import contract

    return {
        "clauses": len(contract.CONTRACT),
        "breaches": contract.breaches(),
        "tested": list(contract.TESTED),
        "version_problem": contract.version_problem(version("ms-swift")),
    }


def accepted_types() -> list[str]:
    """Those of our `--rlhf_type` names that the parser of `swift rlhf` takes."""
    from swift import RLHFArguments
    from transformers import HfArgumentParser

    parser = HfArgumentParser([RLHFArguments], exit_on_error=False)
    choices = next(action.choices for action in parser._actions if "--rlhf_type" in action.option_strings)
    return [name for name in NAMES if choices is not None and name in choices]


def import_trainers() -> list[str]:
    """Import the trainer of every algorithm; their dotted names."""
    for algorithm in ALGORITHMS.values():
        module, _, name = algorithm.trainer.rpartition(".")
        getattr(importlib.import_module(module), name)
    return [algorithm.trainer for algorithm in ALGORITHMS.values()]


def listed_rewards() -> list[dict[str, Any]]:
    """Every name that `--reward_funcs` takes, sorted: who offers it, how it is called, what is wrong with it.

    Left out: ms-swift's own entries that only `swift sample` can call.
    """
    from swift.rewards import orms

    from swift_rlx.integration.reward_names import StandIn
    from swift_rlx.rewards import REWARDS

    stock = {name: target for name, target in orms.items() if not isinstance(target, StandIn)}
    listed = [_describe(name, stock) for name in sorted({*stock, *REWARDS.names()})]
    return [entry for entry in listed if entry is not None]


def _describe(name: str, stock: dict[str, Any]) -> dict[str, Any] | None:
    from swift_rlx.integration.reward_names import check_reward_names
    from swift_rlx.rewards import REWARDS, describe_reward

    owners = ([_stock_provider(stock[name])] if name in stock else []) + list(REWARDS.providers(name))
    entry: dict[str, Any] = {"name": name, "providers": [str(owner) for owner in owners], "problem": None}
    try:
        check_reward_names([name])
    except RlxError as error:
        entry["problem"] = str(error)
    if len(owners) > 1:
        return entry
    try:
        target = stock[name] if name in stock else REWARDS.get(name)
        spec = describe_reward(name, target, provider=owners[0]).spec
    except RlxError as error:
        if owners[0].name.startswith("ms-swift"):
            return None
        return entry | {"problem": entry["problem"] or str(error)}
    return entry | {
        "version": spec.version,
        "per_completion": spec.per_completion,
        "is_async": spec.is_async,
        "scope": spec.scope,
        "required_columns": list(spec.required_columns),
    }


def _stock_provider(target: Any) -> Provider:
    """ms-swift and the file inside it, or the module of whoever wrote into ms-swift's table."""
    module = (target if inspect.isclass(target) or inspect.isroutine(target) else type(target)).__module__
    if not module.startswith("swift."):
        return Provider(f"module {module}")
    return Provider("ms-swift", f"{version('ms-swift')} ({module.replace('.', '/')}.py)")
