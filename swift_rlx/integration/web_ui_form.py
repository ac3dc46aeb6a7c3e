"""ms-swift's web page, form part: the RLHF tab submits one of our types as the form shows it.

For a type that it does not know, stock drops the completion length and the reward model from the command,
proposes beta 0.1, and answers a refusal with the word "Error".
"""

from types import ModuleType
from typing import Any

from swift_rlx.errors import RlxError
from swift_rlx.integration.algorithm_table import NAMES, resolve

KEPT = ("max_completion_length", "reward_model", "reward_model_type", "ref_model", "ref_model_type")


def install(module: ModuleType) -> None:
    """Wrap three functions of `swift.ui.llm_rlhf.llm_rlhf`, the tab and its fields."""
    tab, fields = module.LLMRLHF, module.RLHF
    tab.filter_rlhf_args = classmethod(_keeping_our_arguments(tab.filter_rlhf_args.__func__))
    tab.train = classmethod(_telling_refusals(tab.train.__func__, module.gr.Error))
    fields.update_beta = staticmethod(_with_our_beta(fields.update_beta, module.gr.update))


def _keeping_our_arguments(stock: Any) -> Any:
    def filter_rlhf_args(cls: Any, arguments: dict[str, Any]) -> None:
        ours = arguments.get("rlhf_type") in NAMES
        kept = {name: arguments.pop(name) for name in KEPT if ours and name in arguments}
        stock(cls, arguments)
        arguments.update(kept)

    return filter_rlhf_args


def _telling_refusals(stock: Any, user_error: type[Exception]) -> Any:
    def train(cls: Any, *values: Any) -> Any:
        try:
            return stock(cls, *values)
        except RlxError as error:
            raise user_error(str(error)) from error

    return train


def _with_our_beta(stock: Any, update: Any) -> Any:
    def update_beta(rlhf_type: str | None) -> Any:
        if rlhf_type not in NAMES:
            return stock(rlhf_type)
        beta = resolve(rlhf_type).beta
        return update(value=beta, step=beta)  # stock's step of 0.1 cannot show it

    return update_beta
