"""Random models of a few kinds, a fraction of a megabyte each: other caches, and images."""

from __future__ import annotations

import torch
import transformers

VOCABULARY = 128
BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {
    "Mistral": {"sliding_window": 6},
    "Gemma2": {"head_dim": 8, "sliding_window": 6},
    "GPT2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "Bloom": {"n_layer": 3, "n_head": 4},
    "Mamba": {"state_size": 8},
    "Mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "Jamba": {
        "num_experts": 2,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "FalconH1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 8,
    },
    "Lfm2": {"full_attn_idxs": [1, 3]},
    "Qwen3Next": {
        "head_dim": 8,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "DeepseekV3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "moe_intermediate_size": 16,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
    },
    "Rwkv": {"context_length": 512, "attention_hidden_size": 32},
    "MiniMax": {"num_local_experts": 2, "head_dim": 8, "block_size": 8},
    "RecurrentGemma": {"lru_width": 32, "attention_window_size": 8, "head_dim": 8},
}
IMAGE = 100
"""Token id that stands for an image, or a part of one."""


def tiny_of(kind, seed=0):
    """A causal model of that kind."""
    config = getattr(transformers, f"{kind}Config")(**{**BASE, **KINDS[kind]})
    torch.manual_seed(seed)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    return getattr(transformers, name)(config)


def tiny_llava(seed=0):
    """Images of 8 x 8 pixels, four `IMAGE` tokens each; inputs `pixel_values` [N, 3, 8, 8]."""
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "model_type": "clip_vision_model",
        "initializer_range": 0.3,
    }
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config={"model_type": "llama", **BASE},
        image_token_index=IMAGE,
        vision_feature_layer=-1,
    )
    torch.manual_seed(seed)
    return transformers.LlavaForConditionalGeneration(config)


def tiny_qwen2_vl(seed=0):
    """Inputs `pixel_values` [patches, 96], `image_grid_thw` [N, 3], `mm_token_type_ids` [1, T]; 4 patches a token."""
    vision = {
        "depth": 2,
        "embed_dim": 16,
        "num_heads": 2,
        "hidden_size": 32,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "mlp_ratio": 2,
    }
    rope = {"rope_type": "default", "type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = transformers.Qwen2VLConfig(
        vision_config=vision,
        text_config={**BASE, "rope_parameters": rope},
        image_token_id=IMAGE,
        vision_start_token_id=101,
        vision_end_token_id=102,
        video_token_id=103,
    )
    torch.manual_seed(seed)
    return transformers.Qwen2VLForConditionalGeneration(config)
