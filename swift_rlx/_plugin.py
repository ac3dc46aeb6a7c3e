"""What this package changes in ms-swift: the entry point `swift_rlx` of the group `swift.plugins`.

Nothing is imported until the module in question has been; then the part of `swift_rlx.integration` that
belongs to it is loaded and its `install(module)` is called.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from swift_rlx._hooks import OnImport

# module of ms-swift -> module of ours whose `install` adapts it
TARGETS = {
    "swift.arguments.rlhf_args": "swift_rlx.integration.arguments",
    "swift.trainers.trainer_factory": "swift_rlx.integration.factory",
    "swift.rewards.orm": "swift_rlx.integration.reward_names",
    "swift.ui.llm_train.runtime": "swift_rlx.integration.web_ui",
    "swift.ui.llm_rlhf.llm_rlhf": "swift_rlx.integration.web_ui_form",
}


def register(on_import: OnImport) -> None:
    """Ask for a callback after each module in `TARGETS` has been imported."""
    for name, adapter in TARGETS.items():
        on_import(name, functools.partial(_adapt, adapter))


def _adapt(adapter: str, module: ModuleType) -> None:
    importlib.import_module(adapter).install(module)
