"""Which LoRA adapters vLLM can load. Imports nothing heavy: the trainer's side asks before it publishes."""

from __future__ import annotations

from collections.abc import Mapping

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM can make room for; an adapter fits into the next larger one."""

REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias in the adapter",
    "modules_to_save": "modules that are trained whole (modules_to_save)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "target_parameters": "LoRA on bare parameters (target_parameters)",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "replicated layers",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}
# Initializations that leave the base weights as they are; of all others the adapter alone is not the model.
PLAIN_INITIALIZATIONS = ("gaussian", "eva", "orthogonal", "mica")
VOCABULARY = ("lm_head", "embed_tokens", "wte", "wpe", "word_embeddings")


def adapter_fault(adapter_config: Mapping[str, object], max_rank: int) -> str | None:
    """Why vLLM cannot serve an adapter with this `adapter_config.json`, in words, or None.

    `max_rank`: `EngineSpec.max_adapter_rank` of the engine.
    """
    kind = adapter_config.get("peft_type", "LORA")
    if kind != "LORA":
        return f"vLLM loads LoRA adapters only, and this is {kind}"
    for field, what in REFUSED.items():
        if adapter_config.get(field):
            return f"vLLM cannot load {what}"
    if (bias := adapter_config.get("bias", "none")) != "none":
        return f"vLLM cannot load trained biases (bias={bias})"
    start = adapter_config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_INITIALIZATIONS:
        return f"an adapter that began as {start} belongs to changed base weights"
    targets = adapter_config.get("target_modules") or ()
    if isinstance(targets, (list, tuple, set, frozenset)):
        vocabulary = sorted(str(name) for name in targets if str(name).split(".")[-1] in VOCABULARY)
        if vocabulary:
            return f"an adapter on {vocabulary[0]} is not loaded by every model of vLLM"
    return _rank_fault(adapter_config, max_rank)


def _rank_fault(adapter_config: Mapping[str, object], max_rank: int) -> str | None:
    ranks = [adapter_config.get("r")]
    pattern = adapter_config.get("rank_pattern")
    if isinstance(pattern, Mapping):
        ranks += pattern.values()
    highest = max((rank for rank in ranks if isinstance(rank, int)), default=0)
    room = adapter_room(max_rank)
    return f"its rank {highest} is over the engine's {room}" if highest > room else None


def adapter_room(rank: int) -> int:
    """The smallest rank that vLLM can make room for and that holds `rank`; 0 for 0, its largest above that."""
    return 0 if rank == 0 else next((room for room in RANKS if room >= rank), RANKS[-1])
