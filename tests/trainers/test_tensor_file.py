"""The nest of tensors in a checkpoint."""

from pathlib import Path

import pytest
import torch

from swift_rlx.errors import CheckpointError
from swift_rlx.trainers.tensor_file import load_tree, save_tree

TREE = [
    {
        "ids": torch.arange(6).view(2, 3),
        "mask": torch.tensor([True, False]),
        "none": None,
        "nested": {"floats": (torch.tensor(0.1, dtype=torch.float64), "text", 3, 0.1 + 0.2)},
    },
    [],
    torch.randn(3, 4).t(),
]


def test_a_nest_comes_back_bit_equal(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.safetensors")
    save_tree(path, TREE)
    loaded = load_tree(path, torch.device("cpu"))
    assert torch.equal(loaded[0]["ids"], TREE[0]["ids"])
    assert torch.equal(loaded[0]["mask"], TREE[0]["mask"])
    assert loaded[0]["none"] is None
    kept = loaded[0]["nested"]["floats"]
    assert isinstance(kept, tuple)
    assert kept[0].dtype == torch.float64
    assert kept[1:] == ("text", 3, 0.1 + 0.2)
    assert loaded[1] == []
    assert torch.equal(loaded[2], TREE[2])
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree.safetensors"]


def test_one_tensor_in_two_places_is_kept_in_both(tmp_path: Path) -> None:
    shared = torch.ones(2)
    path = str(tmp_path / "tree.safetensors")
    save_tree(path, {"a": shared, "b": shared[:1]})
    loaded = load_tree(path, torch.device("cpu"))
    assert loaded["a"].tolist() == [1.0, 1.0]
    assert loaded["b"].tolist() == [1.0]


@pytest.mark.parametrize("value", [object(), {1: torch.ones(1)}, {"set": {1}}])
def test_other_values_are_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved"):
        save_tree(str(tmp_path / "tree.safetensors"), value)


def test_a_torn_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.safetensors"
    save_tree(str(path), TREE)
    whole = path.read_bytes()
    for torn in (whole[:-5], whole[:9], b"", b"not safetensors at all"):
        path.write_bytes(torn)
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_tree(str(path), torch.device("cpu"))
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tree(str(path), torch.device("cpu"))
