"""Sequences that a transformers model decodes together, whatever cache the model keeps.

The inputs of the first forward are prepared by the model's own `generate` (mask, positions, cache, checks), those
of the later ones by `prepare_inputs_for_generation`: what `generate` itself does, so that every model works that
it can generate with. Between two tokens rows can be dropped or doubled, and two batches put together; sequences
are aligned at their right end, padding is masked.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import GenerationConfig
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)
from transformers.utils import ModelOutput

PER_TOKEN = ("token_type_ids", "mm_token_type_ids", "cross_attention_mask")
"""Names of model inputs with one entry for each token of the prompt, [1, T, ...]; the model itself extends them."""
_CACHES = ("past_key_values", "cache_params", "state", "mems")
_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)
_ALIGNABLE = (*_ATTENTION, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
_ROW_FIRST = ("attention_mask", "token_type_ids", "mm_token_type_ids")
_STATES = ("conv_states", "recurrent_states")
MAX_PADDING = 2.0
"""Two batches are put together while the columns times rows of the whole stay below this multiple of theirs."""

MAX_DIVERGENCE = {torch.float32: 1e-5}
"""Nats, by float type, between the next token's distribution with and without a cache: more than rounding makes."""
MAX_ROUGH_DIVERGENCE = 0.2
"""The same for the float types of fewer digits."""


class TokenBatch:
    """`ids` [B, S] and all that the model needs for the next token of each row.

    `inputs`: further arguments of the first forward, for a batch of one sequence.
    """

    def __init__(
        self, model: Any, sequences: Sequence[Sequence[int]], inputs: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        width = max(map(len, sequences))
        # A row is padded with its own first token: a repetition penalty then sees no token that is not its own.
        rows = [[*([sequence[0]] * (width - len(sequence))), *sequence] for sequence in sequences]
        mask = [[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences]
        self._model = model
        self._mask = torch.tensor(mask, device=model.device)
        self.ids = torch.tensor(rows, device=model.device)
        self._kwargs = _first_inputs(model, self.ids, self._mask, inputs or {})
        self._foreign = [name for name in inputs or {} if name not in PER_TOKEN]
        self._is_first = True
        self._unread = self.ids.shape[1]

    @property
    def cache(self) -> Any:
        """What the model keeps of the tokens so far; None: nothing yet, or it has no cache."""
        return next((self._kwargs[name] for name in _CACHES if self._kwargs.get(name) is not None), None)

    @torch.no_grad()
    def forward(self) -> torch.Tensor:
        """Logits of the next token, [B, V] in float32."""
        length = None if self._is_first or self.cache is None else self._unread
        arguments = self._model.prepare_inputs_for_generation(
            self.ids, next_sequence_length=length, is_first_iteration=self._is_first, **self._kwargs
        )
        outputs = self._model(**arguments, return_dict=True)
        self._kwargs = self._model._update_model_kwargs_for_generation(outputs, self._kwargs)
        if self._is_first:
            for name in self._foreign:
                self._kwargs.pop(name, None)
            self._is_first = False
        logits: torch.Tensor = outputs.logits[:, -1]
        return logits.to(self.ids.device, torch.float32)

    def append(self, tokens: torch.Tensor) -> None:
        """Tokens after the last ones, [B, n]; call it once after each `forward`."""
        self._unread = tokens.shape[1]
        if self._unread > 1:  # `forward` has made room for one
            self._kwargs = self._model._update_model_kwargs_for_generation(
                ModelOutput(), self._kwargs, num_new_tokens=self._unread - 1
            )
        self.ids = torch.cat([self.ids, tokens.to(self.ids.device)], dim=1)
        self._mask = F.pad(self._mask, (0, self._unread), value=1)

    @property
    def takes_padding(self) -> bool:
        """Whether sequences of unlike length may share the first forward; asked after a `forward`.

        Not where a layer has a state that runs over the padding: what becomes of it there is up to each model.
        """
        return self.is_standard and all(type(layer) in _ATTENTION for layer in self.cache.layers)

    @property
    def is_standard(self) -> bool:
        """Whether all that the model keeps is in a cache of transformers' own; asked after a `forward`.

        Only then may a batch have several rows: the others know how to be batched in their own ways, if at all.
        """
        cache = self.cache
        return (
            isinstance(cache, Cache)
            and _accepts_mask(self._model)
            and {type(each).__module__ for each in (cache, *cache.layers)} == {Cache.__module__}
            and any(_is_filled(layer) for layer in cache.layers)
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, of a standard batch; one may be named more than once."""
        index = torch.tensor(rows, device=self.ids.device)
        size = len(self.ids)
        self.cache.reorder_cache(index)
        for name, value in self._kwargs.items():
            if isinstance(value, torch.Tensor) and value.dim():
                dim = value.dim() - 2 if name == "position_ids" else 0
                if value.shape[dim] == size:
                    self._kwargs[name] = value.index_select(dim, index.to(value.device))
        self.ids, self._mask = self.ids[index], self._mask[index]
        empty = int(self._mask.any(0).int().argmax())
        if empty and self._can_align():
            self._resize(self.ids.shape[1] - empty)

    def take_over(self, other: TokenBatch) -> bool:
        """Append the rows of `other`, which is then of no more use; False: they cannot share a batch.

        Both are standard, and as `append` left them.
        """
        width = max(self.ids.shape[1], other.ids.shape[1])
        cells = self.ids.numel() + other.ids.numel()
        if width * (len(self.ids) + len(other.ids)) > MAX_PADDING * cells or not self._fits(other):
            return False
        names = sorted({*self._kwargs, *other._kwargs} & {*_ROW_FIRST, "position_ids"})
        for batch in (self, other):
            batch._complete(names)
            batch._resize(width)
        for name in names:
            mine, theirs = self._kwargs[name], other._kwargs[name]
            self._kwargs[name] = torch.cat(
                [mine, theirs], dim=mine.dim() - 2 if name == "position_ids" else 0
            )
        self.ids = torch.cat([self.ids, other.ids])
        self._mask = torch.cat([self._mask, other._mask])
        for layer, added in zip(self.cache.layers, other.cache.layers, strict=True):
            _append_rows(layer, added)
        return True

    def _can_align(self) -> bool:
        """Whether columns can be added and taken at the left end."""
        cache = self.cache
        known = {*_ROW_FIRST, *_CACHES, "position_ids"}
        return (
            all(type(layer) in _ALIGNABLE for layer in cache.layers)
            and all(_length(layer) in (None, self.ids.shape[1] - 1) for layer in cache.layers)
            and all(
                name in known or not isinstance(value, torch.Tensor) for name, value in self._kwargs.items()
            )
        )

    def _fits(self, other: TokenBatch) -> bool:
        if not (self._can_align() and other._can_align()):
            return False
        mine, theirs = self.cache.layers, other.cache.layers
        positions = [batch._kwargs.get("position_ids") for batch in (self, other)]
        dims = {None if each is None else each.dim() for each in positions}
        return len(dims) == 1 and [_kind(layer) for layer in mine] == [_kind(layer) for layer in theirs]

    def _complete(self, names: Sequence[str]) -> None:
        """Write out what is left away while it says nothing: a mask without padding, types that are all 0."""
        for name in names:
            if self._kwargs.get(name) is None:
                self._kwargs[name] = self._mask if name == "attention_mask" else torch.zeros_like(self.ids)
        positions = self._kwargs.get("position_ids")
        if positions is not None:
            self._kwargs["position_ids"] = positions.expand(*positions.shape[:-2], len(self.ids), -1)

    def _resize(self, width: int) -> None:
        """Add masked columns at the left end, or drop such."""
        added = width - self.ids.shape[1]
        if not added:
            return
        for name in (*_ROW_FIRST, "position_ids"):
            if self._kwargs.get(name) is not None:
                self._kwargs[name] = _pad_left(self._kwargs[name], added)
        own = self.ids[:, :1].expand(-1, max(added, 0))
        self.ids = torch.cat([own, self.ids[:, max(-added, 0) :]], dim=1)
        self._mask = _pad_left(self._mask, added)
        for layer in self.cache.layers:
            _resize_layer(layer, width - 1)


def keeps_batches_apart(model: Any) -> bool:
    """Whether two batches can take turns: not where the model itself remembers what it has read."""
    batches = [TokenBatch(model, [[1, 2, 3]]), TokenBatch(model, [[4, 5]])]
    allowed = MAX_DIVERGENCE.get(model.dtype, MAX_ROUGH_DIVERGENCE)
    for _ in range(2):
        for batch in batches:
            served = batch.forward().log_softmax(-1)
            with torch.no_grad():
                logits = model(input_ids=batch.ids, use_cache=False).logits[:, -1]
            expected = logits.to(served.device, torch.float32).log_softmax(-1)
            if float(F.kl_div(served, expected, log_target=True, reduction="sum")) > allowed:
                return False
            batch.append(served.argmax(-1, keepdim=True))
    return True


def _first_inputs(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Keyword arguments with which `generate` would begin, cache included."""
    captured: dict[str, Any] = {}

    def capture(
        model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any,
        generation_config: Any, **model_kwargs: Any,
    ) -> torch.Tensor:  # fmt: skip
        captured.update(model_kwargs)
        return input_ids

    arguments = {"attention_mask": mask, **inputs} if _accepts_mask(model) else inputs
    config = GenerationConfig(
        max_new_tokens=1,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        use_cache=True,
        cache_implementation="dynamic",
        pad_token_id=0,
    )
    model.generate(ids, generation_config=config, custom_generate=capture, **arguments)
    return captured


def _accepts_mask(model: Any) -> bool:
    return "attention_mask" in inspect.signature(model.forward).parameters


def _kind(layer: Any) -> tuple[object, ...]:
    """What two layers must have in common to hold each other's rows."""
    flags = [tuple(getattr(layer, name, {}).keys()) for name in _STATES]
    return type(layer), getattr(layer, "sliding_window", None), _length(layer) is None, *flags


def _length(layer: Any) -> int | None:
    """Tokens that an attention layer has seen; None: it has no keys."""
    if not isinstance(layer, DynamicLayer) or not layer.is_initialized:
        return None
    return int(layer.get_seq_length())


def _is_filled(layer: Any) -> bool:
    states = [state for name in _STATES for state in getattr(layer, name, {}).values()]
    return _length(layer) is not None or any(state is not None for state in states)


def _pad_left(tensor: torch.Tensor, added: int) -> torch.Tensor:
    return F.pad(tensor, (added, 0)) if added > 0 else tensor[..., -added:]


def _resize_layer(layer: Any, length: int) -> None:
    if _length(layer) is None:
        return
    stored = length
    if isinstance(layer, DynamicSlidingWindowLayer):
        stored = min(length, layer.sliding_window - 1)
        layer.cumulative_length = length
    added = stored - layer.keys.shape[-2]
    if added > 0:
        layer.keys, layer.values = (F.pad(each, (0, 0, added, 0)) for each in (layer.keys, layer.values))
    elif added < 0:
        layer.keys, layer.values = (each[..., -added:, :] for each in (layer.keys, layer.values))


def _append_rows(layer: Any, other: Any) -> None:
    if _length(layer) is not None:
        layer.keys = torch.cat([layer.keys, other.keys])
        layer.values = torch.cat([layer.values, other.values])
    for name in _STATES:
        states, added = getattr(layer, name, {}), getattr(other, name, {})
        for key, state in states.items():
            if state is not None:
                states[key] = torch.cat([state, added[key]])
