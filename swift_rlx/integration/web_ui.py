"""ms-swift's web page, run-time part: plots of a run of ours, where stock shows none or fails.

Stock gives no plots, and then a TypeError, for an rlhf_type that it does not know: ours look like GRPO's.
From 4.6.0 on, the page follows a running task only if it knows it, and in every tab it knows tasks by the
commands of the training tab, so no `swift rlhf` task is followed before it has ended.
"""

from types import ModuleType
from typing import Any

from swift_rlx.integration.algorithm_table import NAMES


def install(module: ModuleType) -> None:
    """Wrap `Runtime.get_plot(task)` and, if it is there, `Runtime._is_known_task(task)` of `module`.

    module: `swift.ui.llm_train.runtime`.
    """
    runtime = module.Runtime
    runtime.get_plot = classmethod(_with_our_plots(runtime.get_plot.__func__))
    if hasattr(runtime, "_is_known_task"):
        runtime._is_known_task = classmethod(_with_our_tasks(runtime._is_known_task.__func__))


def _with_our_plots(stock: Any) -> Any:
    def get_plot(cls: Any, task: str) -> Any:
        plot = stock(cls, task)
        return cls.grpo_plot if plot is None and _is_ours(cls, task) else plot

    return get_plot


def _with_our_tasks(stock: Any) -> Any:
    def _is_known_task(cls: Any, task: str) -> bool:
        known: bool = stock(cls, task)
        if known or cls.group == "llm_rlhf" or not _is_ours(cls, task):
            return known
        # the same checks, by the commands of the tab in which our types are
        return bool(stock(type(cls.__name__, (cls,), {"group": "llm_rlhf"}), task))

    return _is_known_task


def _is_ours(cls: Any, task: str) -> bool:
    """Whether a task, written by the page as `pid:1/create:.../running:.../cmd:swift rlhf ...`, is ours."""
    try:
        return cls.parse_info_from_cmdline(task)[1].get("rlhf_type") in NAMES
    except (LookupError, TypeError, ValueError, OSError):  # not a task at all, or one without --output_dir
        return False
