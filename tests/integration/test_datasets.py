"""Data sets load as for stock grpo: files, folders, samples, registered ones, ids of both hubs (stubs)."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import modelscope
import pytest
import runs

ROWS = [{"query": f"Say {row}", "solution": f"say {row}", "level": row} for row in range(12)]
Rows = list[dict[str, Any]]


def rewarded(completions: list[str], solution: list[str], level: list[int], **_: Any) -> list[float]:
    return [float(number) for number in level]


@pytest.fixture
def train_rows(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Rows, Rows]]:
    """The rows that the trainers of rloo and of stock grpo are given for the same options."""
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))

    def rows_of(rlhf_type: str, **options: Any) -> Rows:
        from swift import RLHFArguments
        from swift.dataset.register import DATASET_MAPPING
        from swift.pipelines.train.rlhf import SwiftRLHF

        class Built(SwiftRLHF):
            def train(self, trainer: Any) -> Rows:
                return [dict(row) for row in trainer.train_dataset]

        registered, imported = dict(DATASET_MAPPING), set(sys.modules)
        options = {"rlhf_type": rlhf_type, "reward_funcs": [rewarded], "report_to": ["none"]} | options
        arguments = runs.arguments(tiny_model, tmp_path, tmp_path / "run", **options)
        try:
            return Built(RLHFArguments(**arguments)).main()
        finally:  # what the run registered would be in the way of the next one
            DATASET_MAPPING.clear()
            DATASET_MAPPING.update(registered)
            for name in [name for name in sys.modules if name.startswith("_swift_external_")]:
                if name not in imported:
                    del sys.modules[name]

    return lambda *dataset, **options: tuple(
        rows_of(rlhf_type, dataset=list(dataset), **options) for rlhf_type in ("rloo", "grpo")
    )


def levels(rows: Rows) -> list[int]:
    """The numbers of the rows, whose prompts and further columns must fit them."""
    for row in rows:
        assert row["messages"][0] == {"role": "user", "content": f"Say {row['level']}"}
        assert row["solution"] == f"say {row['level']}"
    return [row["level"] for row in rows]


def write(path: Path, rows: Rows) -> str:
    """Write rows in the format that the file's ending names."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        datasets.Dataset.from_list(rows).to_parquet(path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_files(ending: str, train_rows: Any, tmp_path: Path) -> None:
    ours, stock = train_rows(write(tmp_path / f"rows.{ending}", ROWS))

    assert ours == stock
    assert sorted(levels(ours)) == list(range(12))
    assert levels(ours) != list(range(12))  # shuffled, in stock's order


@pytest.mark.slow
def test_several_files_and_a_folder(train_rows: Any, tmp_path: Path) -> None:
    write(tmp_path / "folder" / "train.jsonl", ROWS[:7])
    ours, stock = train_rows(str(tmp_path / "folder"), write(tmp_path / "rest.jsonl", ROWS[7:]))

    assert ours == stock
    assert sorted(levels(ours)) == list(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("number", [5, 20])
def test_sampling_of_a_file(number: int, train_rows: Any, tmp_path: Path) -> None:
    ours, stock = train_rows(f"{write(tmp_path / 'rows.jsonl', ROWS)}#{number}")

    assert ours == stock
    assert len(levels(ours)) == number
    assert len(set(levels(ours))) == min(number, 12)


@pytest.mark.slow
def test_custom_dataset_info(train_rows: Any, tmp_path: Path) -> None:
    rows = [{"frage": row["query"], "solution": row["solution"], "level": row["level"]} for row in ROWS]
    write(tmp_path / "rows.jsonl", rows)
    info = [{"dataset_name": "fragen", "dataset_path": "rows.jsonl", "columns": {"frage": "query"}}]
    path = tmp_path / "info.json"
    path.write_text(json.dumps(info), encoding="utf-8")
    ours, stock = train_rows("fragen", custom_dataset_info=[str(path)])

    assert ours == stock
    assert sorted(levels(ours)) == list(range(12))


@pytest.mark.slow
def test_register_dataset_in_an_external_plugin(train_rows: Any, tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [{"number": row["level"]} for row in ROWS])
    plugin = tmp_path / "numbers.py"
    plugin.write_text(
        f"""
from swift.dataset import DatasetMeta, RowPreprocessor, register_dataset


class Numbers(RowPreprocessor):
    def preprocess(self, row):
        number = row["number"]
        messages = [{{"role": "user", "content": f"Say {{number}}"}}]
        return {{"messages": messages, "solution": f"say {{number}}", "level": number}}


path = {str(tmp_path / "rows.jsonl")!r}
register_dataset(DatasetMeta(dataset_path=path, dataset_name="numbers", preprocess_func=Numbers()))
""",
        encoding="utf-8",
    )
    ours, stock = train_rows("numbers#6", external_plugins=[str(plugin)])

    assert ours == stock
    assert len(set(levels(ours))) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "hub", "subset", "split", "number"),
    [
        ("ms::owner/questions", "modelscope", "default", "train", 12),
        ("ms::owner/questions:hard#4", "modelscope", "hard", "train", 4),
        ("hf::owner/questions", "huggingface", "default", "train", 12),
        ("hf::owner/questions:hard#4", "huggingface", "hard", "train", 4),
        ("owner/questions:hard#4", "huggingface", "hard", "train", 4),  # the tests run with USE_HF=1
    ],
)
def test_ids_of_the_hubs(
    dataset: str,
    hub: str,
    subset: str,
    split: str,
    number: int,
    train_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []
    stub = datasets.Dataset.from_list(ROWS)

    def from_modelscope(dataset_id: str, *, subset_name: str, split: str, **_: Any) -> datasets.Dataset:
        calls.append(("modelscope", dataset_id, subset_name, split))
        return stub

    def from_huggingface(dataset_id: str, *, name: str, split: str, **_: Any) -> datasets.Dataset:
        calls.append(("huggingface", dataset_id, name, split))
        return stub

    monkeypatch.setattr(modelscope.MsDataset, "load", from_modelscope)
    monkeypatch.setattr(datasets, "load_dataset", from_huggingface)
    ours, stock = train_rows(dataset)

    assert calls == [(hub, "owner/questions", subset, split)] * 2
    assert ours == stock
    assert len(set(levels(ours))) == number
