"""Attention over a `PromptLayout`: the keys and values of a prompt, computed once, serve all of its completions.

It takes the place of transformers' `sdpa` attention by the interface that transformers has for that, and calls it for
each of the two blocks; without a layout it is that function.
"""

import inspect
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swift_rlx.errors import ConfigError
from swift_rlx.trainers.prompt_layout import PromptLayout

NAME = "swift_rlx_shared_prompt"
BESIDES = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What a model may hand to its attention that changes it, and that is not in the two blocks."""


class _Move(torch.autograd.Function):
    """Rows of `rows` [n, ...] to `index` [m], zeros where it is -1; `inverse` [n] says where each row goes.

    No row goes to two places, so that the gradient moves back as it is: without the sums of an indexing's own
    backward pass, which take longer than the attention.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return _taken(rows, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return _taken(gradient, inverse), None, None


def _taken(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    taken = rows.index_select(0, index.clamp(min=0))
    return taken.masked_fill_((index < 0).view(-1, *[1] * (rows.ndim - 1)), 0)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    shared_prompt: PromptLayout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`sdpa_attention_forward`; with a layout of the N tokens, `query`, `key` and `value` are [1, heads, N, size]."""
    if shared_prompt is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    layout = shared_prompt
    _check_call(layout, key, kwargs)
    (query_P, query_B), (key_P, key_B), (value_P, value_B) = (
        _blocks(heads, layout) for heads in (query, key, value)
    )
    key_B, value_B = (
        torch.cat([block_P.index_select(0, layout.prompt_of_B), block_B], 1)
        for block_P, block_B in ((key_P, key_B), (value_P, value_B))
    )
    out = [
        sdpa_attention_forward(module, *(block.transpose(1, 2) for block in blocks), mask, **kwargs)[0]
        for blocks, mask in (
            ((query_P, key_P, value_P), None),  # causal; what is padded is behind what attends
            ((query_B, key_B, value_B), attention_mask),
        )
    ]
    layout.num_attended += 1
    both = torch.cat([block.flatten(0, 1) for block in out])
    return _Move.apply(both, layout.places, layout.slots)[None], None


def _blocks(heads: torch.Tensor, layout: PromptLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, heads, N, size] as prompts [P, Tp, heads, size] and completions [B, Tc, heads, size]."""
    both = _Move.apply(heads[0].transpose(0, 1), layout.slots, layout.places)
    num_rows, num_completion = layout.mask.shape[0], layout.mask.shape[2]
    size = num_rows * num_completion
    prompts, completions = both.split([len(both) - size, size])
    return (
        prompts.unflatten(0, (layout.num_prompts, -1)),
        completions.unflatten(0, (num_rows, num_completion)),
    )


def _check_call(layout: PromptLayout, key: torch.Tensor, kwargs: dict[str, Any]) -> None:
    more = [name for name in BESIDES if kwargs.get(name) is not None]
    if more:
        raise ConfigError(
            f"--share_prompt true cannot be used with this model, whose attention has {', '.join(more)}; drop the flag"
        )
    if key.shape[0] != 1 or key.shape[2] != layout.num_tokens:
        raise ConfigError(
            f"--share_prompt true cannot be used with this model or tuner: its attention looks at {key.shape[2]} keys"
            f" where there are {layout.num_tokens} tokens; drop the flag"
        )


def use_shared_attention(model: nn.Module) -> None:
    """Have the model under all wrappers attend with `attend`. Raises ConfigError for one that cannot."""
    pretrained = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    if pretrained.config._attn_implementation == NAME:
        return
    if (problem := _problem(pretrained)) is not None:
        raise ConfigError(
            f"--share_prompt true cannot be used with {type(pretrained).__name__}: {problem}; drop the flag"
        )
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    pretrained.set_attn_implementation(NAME)


def _problem(model: PreTrainedModel) -> str | None:
    config = model.config.get_text_config()
    if getattr(model, "_is_stateful", False):
        return "it carries a state from token to token besides keys and values"
    if not model._supports_attention_backend:
        return "its attention cannot be replaced"
    if model.config._attn_implementation != "sdpa":
        return f"its attention is {model.config._attn_implementation}, and only sdpa can share a prompt"
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return "it computes the logits of every token"
    if len({*getattr(model, "hf_device_map", {}).values()}) > 1:
        return "it is spread over several devices"
    kinds = {*(getattr(config, "layer_types", None) or ["full_attention"])} - {"full_attention"}
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        kinds.add("sliding_attention")
    return f"it has layers of {', '.join(sorted(kinds))}" if kinds else None
