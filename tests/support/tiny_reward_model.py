"""A random reward model of one layer with a tokenizer of its own, and what it gives, computed by transformers alone."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

SPECIAL = ["<|im_end|>", "<|im_start|>", "<|pad|>"]  # other ids than the policy's tokenizer has


def save_reward_model(folder: Path, seed: int = 3) -> Path:
    """Write it to `folder`, which is returned. Its vocabulary is smaller than that of the tiny policy."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet, vocab_size=270)
    tokenizer.train_from_iterator(["a reward model has words of its own"] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[2])
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        initializer_range=0.5,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def scores(folder: Path, table: dict[str, list[Any]]) -> list[float]:
    """What the reward model gives for prompt and completion, computed with its own tokenizer."""
    model = LlamaForSequenceClassification.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    texts = [p + c + "<|im_end|>\n" for p, c in zip(table["prompt"], table["completion"], strict=True)]
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts]
