"""Logs into a store and rows out of it: every form of log, errors that name the row, and nothing twice."""

from __future__ import annotations

import csv
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_groups import by_order, filled, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.log_export import conversations, sheet, write_rows
from swift_rlx.store.log_files import read_rows
from swift_rlx.store.log_import import LogImport, import_log, import_scores, read_log
from swift_rlx.store.log_rows import LogColumns
from swift_rlx.store.recipe import Source

ROW = {"prompt": "2+2?", "answer": "4", "score": 1}


class Letters:
    """A tokenizer: a token is a letter; the answer ends with 0."""

    def prompt(self, messages):
        return [ord(letter) for one in messages for letter in str(one["content"])]

    def answer(self, messages, text):
        return [*map(ord, text), 0]


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def brought(store, what, encoder):
    return import_log(store, what, read_log(what), encoder)


def imported(tmp_path, *files, encoder=None, **options):
    store = TrajectoryStore.create(tmp_path / "store")
    columns = LogColumns(options.pop("names", {}))
    done = brought(store, LogImport(files, columns, **options), encoder or Letters())
    return store, done


def test_rows_with_one_answer_become_a_group_of_each_prompt(tmp_path):
    rows = [
        ROW,
        {"prompt": "1+1?", "answer": "2", "score": 1.5, "level": "easy"},
        {**ROW, "answer": "five", "score": False},
    ]
    store, done = imported(tmp_path, jsonl(tmp_path / "a.jsonl", *rows))
    assert (done.groups, done.rows, done.without_logprobs) == (2, 3, 3)
    found = by_order(store.snapshot())
    first, second = found[0], found[1]
    assert first.texts == ("4", "five")
    assert [one.score.reward for one in first.group.members] == [1.0, 0.0]
    assert first.group.prompt.token_ids.tolist() == [ord(letter) for letter in "2+2?"]
    assert first.group.members[1].completion.token_ids.tolist() == [*map(ord, "five"), 0]
    assert np.isnan(first.group.members[0].completion.logprobs).all()
    assert second.group.prompt.columns == {"level": "easy", "messages": [{"role": "user", "content": "1+1?"}]}
    assert second.group.members[0].score.breakdown[0].name == "score"


def test_lists_of_answers_with_ids_log_probs_and_several_scores(tmp_path):
    row = {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "prompt_ids": [5, 6],
        "answer": ["a", "b"],
        "token_ids": [[1, 2], [3]],
        "logprobs": [[-0.5, 0], [-1.25]],
        "score": [{"judge": 7, "format": 1.0}, None],
        "loss_mask": [[True, False], None],
        "id": 17,
    }
    store, done = imported(tmp_path, jsonl(tmp_path / "a.jsonl", row))
    assert (done.groups, done.rows, done.without_logprobs) == (1, 2, 0)
    one, other = store.snapshot().rows([0, 1])
    assert (one.logprobs.tolist(), one.loss_mask.tolist(), one.reward) == ([-0.5, 0.0], [True, False], 8.0)
    assert (other.token_ids.tolist(), other.reward, other.loss_mask) == ([3], None, None)
    stored = store.snapshot().group(0)
    assert [(part.name, part.value) for part in stored.group.members[0].score.breakdown] == [
        ("judge", 7.0),
        ("format", 1.0),
    ]
    assert stored.prompt_id == "17"


def test_a_conversation_that_ends_with_the_answer_is_split(tmp_path):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    store, _ = imported(tmp_path, jsonl(tmp_path / "a.jsonl", {"messages": messages, "score": 1}))
    stored = store.snapshot().group(0)
    assert stored.texts == ("ho",)
    assert stored.group.prompt.columns["messages"] == messages[:1]


def test_csv_and_parquet_with_other_names(tmp_path):
    names = {"prompt": "question", "answer": "output", "score": "rating"}
    table = {"question": ["q", "q"], "output": ["a", "line 1\nline 2"], "rating": ["0.5", ""]}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table)
        writer.writeheader()
        writer.writerows([dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)])
    pq.write_table(pa.table({**table, "rating": [0.25, None]}), tmp_path / "b.parquet")
    store, done = imported(tmp_path, tmp_path / "a.csv", tmp_path / "b.parquet", names=names)
    assert (done.groups, done.rows) == (1, 4)
    assert [row.reward for row in store.snapshot().rows(range(4))] == [0.5, None, 0.25, None]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"answer": "4"},
            "it has no prompt; its columns are answer: name one, as in --columns prompt=question",
        ),
        ({"prompt": "2", "output": "4"}, "it has no answer; its columns are prompt, output: name one"),
        ({"prompt": " ", "answer": "4"}, "its prompt ' ' is neither text nor messages"),
        (
            {"prompt": [{"role": "user"}], "answer": "4"},
            "its prompt .* is neither text nor messages with role and content",
        ),
        ({**ROW, "answer": ""}, "its answer is empty"),
        ({**ROW, "answer": None}, "its answer is empty"),
        ({**ROW, "prompt": None}, "its prompt is empty"),
        ({**ROW, "answer": 4}, "its answer 4 is no text"),
        ({**ROW, "answer": []}, "its list of answers is empty"),
        ({**ROW, "score": "good"}, "its score 'good' is no finite number"),
        ({**ROW, "score": float("nan")}, "its score nan is no finite number"),
        ({**ROW, "score": [1]}, r"its score \[1\] is no finite number"),
        ({**ROW, "answer": ["4", "5"]}, "it has 2 answers, but score is 1: a list of 2 is needed"),
        ({**ROW, "answer": ["4", "5"], "score": [1]}, r"it has 2 answers, but score is \[1\]"),
        ({**ROW, "token_ids": [1, -2]}, r"its token_ids \[1, -2\] are no list of token ids"),
        (
            {**ROW, "token_ids": [1, 2], "logprobs": [-1]},
            "its logprobs are not one for each of its 2 token_ids",
        ),
        ({**ROW, "logprobs": [-1]}, "its logprobs are not one for each of its missing token_ids"),
        (
            {**ROW, "token_ids": [1], "logprobs": [0.5]},
            "its log-prob 0.5 is not a finite number of at most 0",
        ),
        ({**ROW, "finish_reason": "eos"}, "its finish_reason 'eos' is neither 'stop' nor 'length'"),
    ],
)
def test_an_unfit_row_is_named(tmp_path, row, message):
    file = jsonl(tmp_path / "a.jsonl", ROW, row)
    with pytest.raises(StoreError, match=rf"a\.jsonl, line 2: {message}"):
        imported(tmp_path, file)
    assert TrajectoryStore.open(tmp_path / "store").snapshot().num_rows == 0
    store, done = imported(tmp_path, file, skips_unfit=True)
    assert (store.snapshot().num_rows, len(done.skipped)) == (1, 1)


@pytest.mark.parametrize(("line", "what"), [("q,,1", "answer"), (",a,1", "prompt")])
def test_an_empty_field_of_a_csv_file_is_no_missing_column(tmp_path, line, what):
    (tmp_path / "a.csv").write_text(f"question,output,rating\nq,a,1\nq,b,\n{line}\n")
    names = {"prompt": "question", "answer": "output", "score": "rating"}
    with pytest.raises(StoreError, match=rf"a\.csv, line 4: its {what} is empty"):
        imported(tmp_path, tmp_path / "a.csv", names=names)
    _, done = imported(tmp_path, tmp_path / "a.csv", names=names, skips_unfit=True)
    assert (done.rows, len(done.skipped)) == (2, 1)
    with pytest.raises(StoreError, match="line 2: there is no column 'text' for the answer"):
        imported(tmp_path, tmp_path / "a.csv", names=names | {"answer": "text"})


def test_an_id_of_two_prompts_is_refused_and_a_prompt_of_two_ids_is_told(tmp_path, caplog):
    rows = [{**ROW, "id": 1}, {**ROW, "id": 1, "answer": "five"}, {**ROW, "id": 1, "prompt": "1+1?"}]
    file = jsonl(tmp_path / "a.jsonl", *rows)
    with pytest.raises(StoreError, match=r"a\.jsonl, line 3: its id '1' is that of another prompt"):
        imported(tmp_path, file)
    _, done = imported(tmp_path, file, skips_unfit=True)
    assert (done.groups, done.rows, len(done.skipped)) == (1, 2, 1)
    assert not caplog.messages
    twice = jsonl(tmp_path / "b.jsonl", *[{**ROW, "id": number} for number in range(3)])
    _, done = imported(tmp_path, twice)
    assert (done.groups, done.rows) == (3, 3)
    assert "1 prompts are there under several ids, a group for each id" in caplog.text
    _, done = imported(
        tmp_path, jsonl(tmp_path / "c.jsonl", *rows[:1], {**ROW, "id": 2}), names={"id": "none"}
    )
    assert (done.groups, done.rows) == (1, 2)


def test_a_source_that_an_answer_lacks_costs_it_no_reward(tmp_path):
    scores = [{"judge": 7, "format": 1.0}, {"judge": 6}, {"format": True, "judge": None}, None]
    row = {"prompt": "u", "answer": ["a", "b", "c", "d"], "score": scores}
    store, _ = imported(tmp_path, jsonl(tmp_path / "a.jsonl", row))
    assert [one.reward for one in store.snapshot().rows(range(4))] == [8.0, 12.0, 2.0, None]
    assert [part.value for part in store.snapshot().group(0).group.members[1].score.breakdown] == [6.0]


def test_files_that_are_none_are_named(tmp_path):
    for name, text, message in [
        ("a.jsonl", "{}\n[1]\n", r"a\.jsonl, line 2: a JSON object is needed, this is list"),
        ("b.jsonl", "{}\n{\n", r"b\.jsonl, line 2: no JSON"),
        ("c.csv", "a,b\n1,2\n3\n", r"c\.csv, line 3: it has another number of fields"),
        ("d.parquet", "no", r"d\.parquet' cannot be imported: it is no parquet file"),
        ("e.txt", "", r"its name ends in \.txt; use \.jsonl"),
        ("f.jsonl", b"\xff\xfe{", "cannot be imported: 'utf-8' codec"),
    ]:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(StoreError, match=message):
            list(read_rows(tmp_path / name))
    with pytest.raises(StoreError, match="there is no such file"):
        list(read_rows(tmp_path / "g.csv"))


def test_a_log_is_not_imported_twice_and_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("swift_rlx.store.log_import.ROUND_GROUPS", 2)
    file = jsonl(tmp_path / "a.jsonl", *[{"prompt": f"q{number}", "answer": "a"} for number in range(5)])

    class Killed(Letters):
        def prompt(self, messages):
            if messages[0]["content"] == "q3":
                raise KeyboardInterrupt
            return super().prompt(messages)

    with pytest.raises(KeyboardInterrupt):
        imported(tmp_path, file, encoder=Killed())
    store, done = imported(tmp_path, file)
    assert (done.rows, store.snapshot().num_rows) == (3, 5)
    with pytest.raises(StoreError, match=r"is in the store .* already; nothing was added"):
        imported(tmp_path, file)
    assert store.snapshot().num_rows == 5


def test_text_without_a_tokenizer_is_refused(tmp_path):
    store = TrajectoryStore.create(tmp_path / "store")
    with pytest.raises(
        StoreError, match=r"line 1: it has text but no token ids; give the model .* --model ID"
    ):
        brought(store, LogImport((jsonl(tmp_path / "a.jsonl", ROW),), LogColumns()), None)


def test_a_meaning_that_does_not_exist_or_a_column_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        StoreError, match=r"--columns promt=\.\.\. is refused: a column means prompt, prompt_ids"
    ):
        LogColumns({"promt": "question"})
    with pytest.raises(
        StoreError, match="line 1: there is no column 'question' for the prompt; it has prompt, answer"
    ):
        imported(tmp_path, jsonl(tmp_path / "a.jsonl", ROW), names={"prompt": "question"})


def test_a_sheet_goes_to_people_and_their_scores_come_back(tmp_path):
    store = filled(TrajectoryStore.create(tmp_path / "s"), [stored_group(1), stored_group(2)])
    for suffix in (".csv", ".jsonl"):
        people = Source(f"human{suffix}", "1")
        out = tmp_path / f"sheet{suffix}"
        assert write_rows(sheet(store.snapshot()), out) == 4
        rows = [dict(row.values) for row in read_rows(out)]
        assert rows[0]["prompt"] == "user: question " + rows[0]["answer"][7]
        rows[2]["score"] = 4
        if suffix == ".csv":
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["trajectory_id", "prompt", "answer", "reward", "score"])
                writer.writeheader()
                writer.writerows(rows)
        else:
            jsonl(out, *rows)
        assert import_scores(store, [out], "trajectory_id", "score", people) == 1
        values = [
            part.value
            for stored in store.snapshot().groups(range(2))
            for one in stored.group.members
            for part in one.score.breakdown
            if part.name == people.name
        ]
        assert values == [4.0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": 1}, "line 1: there is no column 'trajectory_id'; it has score"),
        ({"trajectory_id": "17", "score": 1}, "line 1: '17' is no trajectory id"),
        ({"trajectory_id": None, "score": 1}, "line 1: its trajectory_id is empty"),
        ({"trajectory_id": "r00000000000000ff", "score": "x"}, "line 1: its score 'x' is no finite number"),
        ({"trajectory_id": "r00000000000000ff", "score": 1}, "1 trajectory ids are not in the store"),
        ({"trajectory_id": "r00000000000000ff"}, "has no score in a column 'score'"),
    ],
)
def test_a_score_without_its_trajectory_is_refused(tmp_path, row, message):
    store = filled(TrajectoryStore.create(tmp_path / "s"), [stored_group(1)])
    with pytest.raises(StoreError, match=message):
        import_scores(
            store, [jsonl(tmp_path / "a.jsonl", row)], "trajectory_id", "score", Source("human", "1")
        )


def test_datasets_opens_shards_and_exported_conversations(tmp_path):
    groups = [stored_group(1, (1.0, None)), stored_group(2, tokens=3)]
    store = filled(TrajectoryStore.create(tmp_path / "s", buckets=1), groups)
    files = sorted(map(str, (tmp_path / "s").rglob("*.rows.arrow")))
    opened = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path / "c"))
    assert opened["token_ids"][3] == [2001, 2002, 2003]
    assert opened["reward"][:2] == [1.0, None]
    texts = sorted(map(str, (tmp_path / "s").rglob("*.texts.arrow")))
    loaded = datasets.load_dataset("arrow", data_files=texts, split="train", cache_dir=str(tmp_path / "c"))
    assert loaded["text"][:2] == ["answer 1.0", "answer 1.1"]
    out = tmp_path / "out.jsonl"
    write_rows(conversations(store.snapshot()), out)
    rows = datasets.load_dataset("json", data_files=str(out), split="train", cache_dir=str(tmp_path / "c"))
    assert rows["messages"][1] == [
        {"role": "user", "content": "question 1"},
        {"role": "assistant", "content": "answer 1.1"},
    ]
    assert rows["trajectory"][0]["parts"] == [{"name": "length", "value": 1.0, "version": "2"}]
    assert json.loads(rows["trajectory"][2]["columns"]) == {"solution": "2"}


def test_export_writes_no_file_over_another_and_needs_text(tmp_path):
    bare = stored_group(1)
    bare = type(bare)(bare.group)
    store = filled(TrajectoryStore.create(tmp_path / "s"), [bare])
    with pytest.raises(StoreError, match=r"has token ids but no text; give the model"):
        write_rows(conversations(store.snapshot()), tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()
    assert write_rows(conversations(store.snapshot(), lambda ids: "decoded"), tmp_path / "a.jsonl") == 2
    with pytest.raises(StoreError, match="is there already"):
        write_rows(conversations(store.snapshot(), lambda ids: "decoded"), tmp_path / "a.jsonl")
    with pytest.raises(StoreError, match=r"its name ends in \.xlsx; use \.jsonl or \.csv"):
        write_rows(sheet(store.snapshot()), tmp_path / "a.xlsx")
