"""What the rewards layer says about ms-swift, checked against the installed ms-swift."""

import json
from dataclasses import fields

import pytest

from swift_rlx.errors import PluginError, RewardError
from swift_rlx.rewards import OnError, checked_reward, columns, describe_reward

pytestmark = [pytest.mark.slow, pytest.mark.versions]


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


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("accuracy", ("solution",)),
        ("cosine", ("solution",)),
        ("format", ()),
        ("react_format", ()),
        ("repetition", ()),
        ("soft_overlong", ()),
    ],
)
def test_the_stock_rewards_are_described(name, required):
    from swift.rewards import orms

    spec = describe_reward(name, orms[name], provider="ms-swift").spec
    assert (spec.per_completion, spec.is_async, spec.required_columns) == (False, False, required)


def test_the_stock_entries_that_are_no_training_rewards_are_refused_by_name():
    from swift.rewards import orms

    with pytest.raises(
        PluginError, match=r"reward 'toolbench' .* has 'infer_requests' as its first parameter"
    ):
        describe_reward("toolbench", orms["toolbench"])


def score(*targets, rows=4, on_error="raise"):
    """[rows, len(targets)], as ms-swift's own code computes it from checked rewards."""
    import torch
    from swift.rl_core.data import GRPOSample
    from swift.rl_core.grpo_algorithm import compute_rewards_per_func

    samples = [
        GRPOSample.from_row(
            {
                "messages": [
                    {"role": "user", "content": f"question {row}"},
                    {"role": "assistant", "content": f"answer {row}"},
                ],
                "solution": f"answer {row % 2}",
            }
        )
        for row in range(rows)
    ]
    policy = OnError.parse(on_error)
    rewards = [checked_reward(describe_reward(f"r{n}", target), policy) for n, target in enumerate(targets)]
    return compute_rewards_per_func(samples, rewards, None, torch.device("cpu")).tolist()


def test_ms_swift_calls_every_form_of_reward_and_keeps_the_order():
    from swift.rewards import ORM, AsyncORM

    class Stock(ORM):
        def __call__(self, completions, solution, **kwargs):
            return [float(c == s) for c, s in zip(completions, solution, strict=True)]

    class StockAsync(AsyncORM):
        async def __call__(self, completions, **kwargs):
            return [10.0 + float(c[-1]) for c in completions]

    async def one_async(completion, solution):
        return 20.0 + float(completion[-1])

    def one(completion, messages, finish_reason, trainer_state, **columns):
        assert messages[-1]["content"] == completion
        return 30.0 + float(completion[-1])

    assert score(StockAsync, Stock, one_async, one) == [
        [10.0, 1.0, 20.0, 30.0],
        [11.0, 1.0, 21.0, 31.0],
        [12.0, 0.0, 22.0, 32.0],
        [13.0, 0.0, 23.0, 33.0],
    ]


def test_an_unscored_row_reaches_ms_swift_as_nan():
    [[first], *others] = score(lambda completion: None if completion == "answer 0" else 1.0)
    assert first != first
    assert others == [[1.0]] * 3


def test_one_value_for_all_rows_is_refused_where_stock_would_spread_it():
    import torch

    with pytest.raises(RewardError, match="returned 1 values for 4 completions"):
        score(lambda completions, **columns: torch.ones(1))


def test_infinity_and_exceptions_stop_the_run_or_leave_the_row_out():
    def odd(completion):
        return float("inf") if completion == "answer 1" else 1.0 / (int(completion[-1]) - 2)

    with pytest.raises(RewardError, match=r"'r0' .* returned inf on row 1 .*prompt 'question 1'"):
        score(odd)
    scores = [row[0] for row in score(odd, on_error="none")]
    assert scores[0] == -0.5
    assert scores[1] != scores[1]
    assert scores[2] != scores[2]
    assert scores[3] == 1.0
