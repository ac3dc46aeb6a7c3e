"""Text of logs as the tokens of training, and exported rows as data of stock ms-swift."""

from __future__ import annotations

import json

import pytest
from stored_groups import filled, stored_group

from swift_rlx.errors import ConfigError
from swift_rlx.integration.log_encoding import LogEncoder
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.log_export import conversations, write_rows
from swift_rlx.store.log_import import LogImport, import_log, read_log
from swift_rlx.store.log_rows import LogColumns

MESSAGES = [{"role": "user", "content": "What is 2+2?"}]
PROMPT = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def encoder(tiny_model):
    return LogEncoder(str(tiny_model), "chatml", model_type="llama")


def whole(encoder, ids):
    """The text of all tokens, those that end an answer included."""
    return encoder._template.tokenizer.decode(ids)


def test_a_prompt_and_its_answer_are_what_training_sees(encoder):
    prompt, answer = encoder.prompt(MESSAGES), encoder.answer(MESSAGES, "It is 4.")
    assert whole(encoder, prompt).endswith(PROMPT)
    assert whole(encoder, answer).rstrip("\n") == "It is 4.<|im_end|>"
    assert encoder.decode(answer).rstrip("\n") == "It is 4."


def test_an_imported_log_has_these_tokens(encoder, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": MESSAGES, "answer": "4", "score": 1.0}))
    store = TrajectoryStore.create(tmp_path / "s")
    what = LogImport((tmp_path / "a.jsonl",), LogColumns())
    import_log(store, what, read_log(what), encoder)
    [row] = store.snapshot().rows([0])
    assert row.prompt_ids.tolist() == encoder.prompt(MESSAGES)
    assert row.token_ids.tolist() == encoder.answer(MESSAGES, "4")


def test_stock_ms_swift_loads_what_is_exported(tmp_path):
    from swift.dataset import load_dataset

    store = filled(TrajectoryStore.create(tmp_path / "s"), [stored_group(1), stored_group(2, (None, 0.5))])
    write_rows(conversations(store.snapshot()), tmp_path / "out.jsonl")
    rows, _ = load_dataset([str(tmp_path / "out.jsonl")])
    assert len(rows) == 4
    texts = {tuple(turn["content"] for turn in row["messages"]) for row in rows}
    assert texts == {
        (f"question {number}", f"answer {number}.{member}") for number in (1, 2) for member in (0, 1)
    }


def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="--model /nowhere is refused: there is no folder '/nowhere'"):
        LogEncoder("/nowhere")
