"""A random model that sees, with processor and pictures: LLaVA with images of 8 x 8 pixels, four tokens each.

Left alone it never says the token that stands for an image: training on an answer that has one fails in ms-swift.
"""

from pathlib import Path

import torch
from PIL import Image
from tiny_llama import save_tiny_llama
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

OPTIONS = {"model_type": "llava1_5_hf", "template": "llava1_5_hf"}
"""What ms-swift has to be told about it."""
SIZE = 8
MARK = "<image>"


def save_tiny_vision(folder: Path, seed: int = 0, mark_bias: float = -50.0) -> None:
    """Write model and processor to `folder`, as `from_pretrained` reads them.

    `mark_bias`: what the logit of the token for images gets.
    """
    save_tiny_llama(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(
        {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": [MARK]}
    )
    images = CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}, do_convert_rgb=True
    )
    LlavaProcessor(
        images,
        tokenizer,
        patch_size=SIZE // 2,
        vision_feature_select_strategy="default",
        image_token=MARK,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(_config(tokenizer))
    norm = model.model.language_model.norm
    with (
        torch.no_grad()
    ):  # the first of the last hidden numbers is always 1, and counts against that token alone
        norm.weight[0], norm.bias[0] = 0, 1
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(MARK), 0] = mark_bias
    model.save_pretrained(folder)


def _config(tokenizer: AutoTokenizer) -> LlavaConfig:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIZE,
        "patch_size": SIZE // 2,
        "initializer_factor": 4.0,
    }
    text = {
        "model_type": "starcoder2",
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,
        "sliding_window": None,
    }
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(MARK),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )


def save_pictures(folder: Path, count: int) -> list[Path]:
    """PNG files of one color each, all different."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        shade = 255 * number // max(count - 1, 1)
        Image.new("RGB", (SIZE, SIZE), (shade, 255 - shade, shade // 2)).save(path)
    return paths
