"""The fixed text, and what is asked about it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from swift_rlx.trainers.weight_probe import probe_logprobs, probe_tokens


def test_text_and_ids_from_all_over_the_vocabulary_without_special_tokens(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    ids = probe_tokens(512, tokenizer)  # a matrix that is padded beyond the 301 tokens

    assert np.array_equal(ids, probe_tokens(512, tokenizer))
    assert (ids.dtype, len(ids)) == (np.int32, 48)
    assert tokenizer.decode(ids[:20].tolist()).startswith("Q: What is 17 + 25")
    assert set(tokenizer.all_special_ids).isdisjoint(ids.tolist())
    assert tokenizer.convert_tokens_to_ids("<|image|>") not in ids
    assert (ids[32], ids[-1]) == (3, 299)


def test_without_a_tokenizer_the_ids_are_spread() -> None:
    assert list(probe_tokens(95)) == list(range(0, 95, 2))
    assert len(probe_tokens(7)) == 48


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_for_the_probe_alone(training: bool) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, attention_dropout=0.9, **sizes)).eval()
    ids = probe_tokens(50)
    rows = torch.log_softmax(model(input_ids=torch.as_tensor(ids, dtype=torch.long)[None]).logits[0], -1)
    model.train(training)
    model.lm_head.eval()

    found = probe_logprobs(model, ids)
    expected = rows[torch.arange(47), torch.as_tensor(ids[1:], dtype=torch.long)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not found.requires_grad
    assert model.training == model.model.training == training
    assert not model.lm_head.training
