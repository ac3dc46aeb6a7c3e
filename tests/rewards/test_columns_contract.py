"""What `rewards/columns.py` says about ms-swift, checked against the installed ms-swift."""

import json
from dataclasses import fields

import pytest

from swift_rlx.rewards import columns

pytestmark = pytest.mark.slow


def test_the_renamed_columns_are_those_that_ms_swift_renames():
    from swift.dataset.preprocessor.core import ResponsePreprocessor

    renamed = ResponsePreprocessor().columns

    def renamed_to(name):
        return {column for column, new in renamed.items() if new == name}

    assert renamed_to("response") == columns._AS_RESPONSE | {"solution"}
    assert renamed_to("query") == columns._AS_QUERY
    assert renamed_to("system") == columns._AS_SYSTEM
    for column, new in columns._AS_MEDIA.items():
        assert renamed[column] == new


def test_the_supplied_and_the_swallowed_columns_are_those_of_the_sample():
    from swift.rl_core.data import GRPOSample

    own = {field.name for field in fields(GRPOSample)}
    sample = GRPOSample.from_row({"messages": [{"role": "user", "content": "?"}], "solution": "4"})
    row = sample.to_reward_row()
    assert columns.SUPPLIED - {"trainer_state"} <= row.keys()
    assert row["solution"] == "4"
    taken = columns._SWALLOWED | (columns._BREAKS.keys() - {"completions"})
    assert taken - {"is_truncated"} <= own


def load(tmp_path, rows, **options):
    from swift.dataset import load_dataset

    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dataset([str(path)], remove_unused_columns=False, load_from_cache_file=False, **options)[0]


def test_the_ways_out_that_the_hints_name_keep_the_column(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    rows = [{"query": "What is 2 + 2?", "answer": "4"}] * 2
    assert "answer" not in load(tmp_path, rows).column_names
    assert load(tmp_path, rows, columns={"answer": "solution"})[0]["solution"] == "4"
    assert load(tmp_path, rows, disable_auto_column_mapping=True)[0]["answer"] == "4"
    assert load(tmp_path, rows, columns={"answer": "gold"})[0]["gold"] == "4"
