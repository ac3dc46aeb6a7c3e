import json

import pytest
import torch
from swift_rlx_semantic_similarity import SemanticSimilarity, load_encoder
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from swift_rlx.testing import Example, check_reward

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *"abcdefgh",
    "the",
    "sun",
    "is",
    "a",
    "star",
    "moon",
    "太",
    "阳",
    "星",
]


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A folder with a random BERT of one layer, of 16 positions, and its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(WORDS))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(vocabulary), max_position_embeddings=16, initializer_range=0.5, **shape
    )
    BertModel(config).save_pretrained(folder)
    return folder


def test_it_keeps_the_rules_of_a_reward(bert, monkeypatch):
    monkeypatch.setenv("SWIFT_RLX_SEMANTIC_MODEL", str(bert))
    check_reward(
        SemanticSimilarity,
        examples=[
            Example("the sun is a star", {"reference": "the sun is a star"}, expected=1.0),
            Example("太阳是星", {"reference": "太阳是星"}, expected=1.0),
            Example("the sun", {"reference": None}, expected=None),
        ],
    )


def test_similarity_is_the_cosine_of_the_mean_over_the_tokens(bert):
    reward = SemanticSimilarity(load_encoder(str(bert)))
    [score] = reward(["the sun"], reference=["the moon is a star"])
    model, tokenizer = BertModel.from_pretrained(bert), PreTrainedTokenizerFast.from_pretrained(bert)
    with torch.no_grad():
        one, other = (
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            for text in ("the sun", "the moon is a star")
        )
    assert score == pytest.approx(float(torch.cosine_similarity(one, other, dim=0)), abs=1e-5)
    assert score < 0.999


def test_padding_and_the_company_of_a_row_change_nothing(bert):
    encode = load_encoder(str(bert))
    alone = encode(["the sun"])
    together = encode(["the sun", "a star is the moon is the sun", "a"])
    assert torch.allclose(alone[0], together[0], atol=1e-5)


def test_the_closest_of_several_references_counts_and_solution_stands_in(bert):
    reward = SemanticSimilarity(load_encoder(str(bert)))
    [near], [far] = reward(["the sun"], reference=["the sun"]), reward(["the sun"], reference=["moon b c"])
    assert reward(["the sun"], reference=[["moon b c", "the sun"]]) == [pytest.approx(near)]
    assert reward(["the sun"], solution=["moon b c"]) == [pytest.approx(far)]
    assert reward(["the sun"], reference=[""], solution=["the sun"]) == [pytest.approx(near)]


def test_what_cannot_be_compared_is_unscored_and_does_not_touch_the_others(bert):
    reward = SemanticSimilarity(load_encoder(str(bert)))
    scores = reward(["the sun", " ", "a star"], reference=["the sun", "the sun", None])
    assert scores == [pytest.approx(1.0), None, None]
    assert SemanticSimilarity()(["x"], reference=[None]) == [None]  # not even a model is needed


def test_the_pooling_of_a_model_of_sentence_transformers_is_respected(bert, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    kinds = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    (folder / "modules.json").write_text(json.dumps([{"type": kind} for kind in kinds]))
    (folder / "1_Pooling").mkdir()
    modes = {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    first = load_encoder(str(folder))(["the sun is a star"])
    assert not torch.allclose(first, load_encoder(str(bert))(["the sun is a star"]))
    assert torch.allclose(first, load_encoder(str(folder))(["the sun"]), atol=1e-5)  # cut after four tokens


def test_without_a_model_the_way_out_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("SWIFT_RLX_SEMANTIC_MODEL", raising=False)
    with pytest.raises(ValueError, match="SWIFT_RLX_SEMANTIC_MODEL"):
        SemanticSimilarity()(["a"], reference=["b"])
    for name in ("no_such_package/model", str(tmp_path / "none"), "json"):
        with pytest.raises(ValueError, match="no model in"):
            load_encoder(name)
