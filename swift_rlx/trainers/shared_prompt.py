"""`--share_prompt true`: log-probs from a forward pass that computes the prompt of a group once.

The completions of a group repeat their prompt in every row of a micro-batch. Here the tokens of each distinct prompt
go through the model once, without padding, and its log-probs, entropies and gradients are those of the plain pass up
to rounding. One call of the model, so that wrappers, adapters and gradient checkpointing work as ever.
"""

from types import SimpleNamespace
from typing import Any

import torch
from swift.rlhf_trainers.grpo_trainer import entropy_from_logits, selective_log_softmax
from torch import nn
from transformers import PreTrainedModel

from swift_rlx.errors import ConfigError
from swift_rlx.trainers.prompt_layout import PromptLayout, lay_out
from swift_rlx.trainers.weight_probe import TOLERANCE, evaluating, probe_tokens

INPUTS = {"input_ids", "attention_mask"}
PROBE_PROMPTS, PROBE_COMPLETIONS = (12, 8), (10, 4, 8, 6)
"""Tokens of the rows that are computed both ways at the start; two completions a prompt."""


def shared_logprobs(
    model: nn.Module, layout: PromptLayout, temperature: float = 1.0, *, with_entropies: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs and entropies (nats, without gradient) of the completions, each [B, T], 0 where there is no token.

    Raises ConfigError if not every layer attends by what `use_shared_attention` has put there.
    """
    layout.num_attended = 0
    logits_MV = model(
        input_ids=layout.token_ids[None],
        position_ids=layout.position_ids[None],
        attention_mask=layout.mask,
        use_cache=False,
        logits_to_keep=layout.sources,
        shared_prompt=layout,
    ).logits[0]
    _check_layers(model, layout)
    if temperature != 1.0:
        logits_MV.div_(temperature)
    rows = zip(logits_MV.split(layout.lengths), layout.targets.split(layout.lengths), strict=True)
    # Row by row, as ms-swift does: an intermediate result is as large as the logits that it is made of.
    logprobs = [selective_log_softmax(logits[None], targets[None])[0] for logits, targets in rows]
    entropies = None
    if with_entropies:
        with torch.no_grad():
            entropies = layout.on_grid(entropy_from_logits(logits_MV))
    return layout.on_grid(torch.cat(logprobs)), entropies


def _config(model: nn.Module) -> Any:
    """Of the model under all wrappers."""
    config = next(module.config for module in model.modules() if isinstance(module, PreTrainedModel))
    return config.get_text_config()


def _check_layers(model: nn.Module, layout: PromptLayout) -> None:
    num_layers = _config(model).num_hidden_layers
    if layout.num_attended != num_layers:
        raise ConfigError(
            f"--share_prompt true cannot be used with this model or tuner: {layout.num_attended} of its {num_layers}"
            " layers attend as transformers' do; drop the flag"
        )


class SharedPromptMixin:
    """For a GRPOTrainer whose `args` have `share_prompt`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.share_prompt:
            self._share_prompts()

    def _share_prompts(self) -> None:
        from swift_rlx.trainers.shared_attention import use_shared_attention  # not in every transformers

        if self.is_multimodal:
            raise ConfigError("--share_prompt true cannot be used with a multimodal model; drop the flag")
        kind = self.accelerator.distributed_type.value
        if kind in ("DEEPSPEED", "FSDP"):
            raise ConfigError(
                f"--share_prompt true cannot be used with {kind}, with which it was never run; use DDP or drop the flag"
            )
        for model in (self.model, self.ref_model):
            if model is not None:
                use_shared_attention(model)
                self._compare_with_plain(model)

    def _get_per_token_logps_and_entropies_single(
        self, model: Any, model_inputs: dict[str, Any], grpo_batch: Any, compute_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.args.share_prompt:
            return super()._get_per_token_logps_and_entropies_single(
                model, model_inputs, grpo_batch, compute_entropy=compute_entropy
            )
        if more := sorted(model_inputs.keys() - INPUTS):
            raise ConfigError(
                f"--share_prompt true cannot be used with a model that takes {', '.join(more)}; drop the flag"
            )
        layout = lay_out(
            model_inputs["input_ids"], model_inputs["attention_mask"], grpo_batch.completion_mask
        )
        return shared_logprobs(model, layout, self.temperature, with_entropies=compute_entropy)

    def _compare_with_plain(self, model: nn.Module) -> None:
        """Refuse a model that mixes tokens in a way that its configuration does not tell."""
        inputs, batch = probe_batch(_config(model).vocab_size, self.accelerator.device)
        with evaluating(model), torch.no_grad():
            shared, _ = self._get_per_token_logps_and_entropies_single(model, inputs, batch)
            plain, _ = super()._get_per_token_logps_and_entropies_single(model, dict(inputs), batch)
        difference = ((shared - plain).abs() * batch.completion_mask).max().item()
        dtype = next(each.dtype for each in model.parameters() if each.is_floating_point())
        tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.float32])
        if not difference <= tolerance:
            raise ConfigError(
                f"--share_prompt true cannot be used with this model: a shared prompt changes a log-prob by"
                f" {difference:.2g} nats, and rounding explains {tolerance:g}; drop the flag"
            )


def probe_batch(vocabulary: int, device: torch.device | str) -> tuple[dict[str, torch.Tensor], Any]:
    """Inputs [4, 22] of two prompts with two completions each, as ms-swift collates them."""
    tokens = torch.as_tensor(probe_tokens(vocabulary), dtype=torch.long).split(
        [*PROBE_PROMPTS, *PROBE_COMPLETIONS]
    )
    prompts, completions = tokens[:2], tokens[2:]
    pairs = [(prompts[row // 2], completion) for row, completion in enumerate(completions)]
    width = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids, attended, trains = (torch.zeros(len(pairs), width, dtype=torch.long) for _ in range(3))
    for row, (prompt, completion) in enumerate(pairs):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.cat([prompt, completion])
        attended[row, :end] = 1
        trains[row, len(prompt) : end] = 1
    keep = width - min(PROBE_PROMPTS)
    batch = SimpleNamespace(completion_mask=trains[:, -keep:].bool().to(device), logits_to_keep=keep)
    return {"input_ids": ids.to(device), "attention_mask": attended.to(device)}, batch
