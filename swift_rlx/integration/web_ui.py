"""ms-swift's web page shows no plot, and fails, for an rlhf_type that it does not know; ours look like GRPO's."""

from types import ModuleType
from typing import Any

from swift_rlx.integration.algorithm_table import NAMES


def install(module: ModuleType) -> None:
    """Wrap `Runtime.get_plot(task)` of `swift.ui.llm_train.runtime`."""
    runtime = module.Runtime
    stock = runtime.get_plot.__func__

    def get_plot(cls: Any, task: str) -> Any:
        plot = stock(cls, task)
        if plot is None and cls.parse_info_from_cmdline(task)[1].get("rlhf_type") in NAMES:
            return cls.grpo_plot
        return plot

    runtime.get_plot = classmethod(get_plot)
