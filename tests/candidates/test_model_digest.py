"""The digest of a model is of what is loaded, and of nothing else."""

from __future__ import annotations

import pytest

from swift_rlx.candidates.model_digest import model_digest
from swift_rlx.errors import ConfigError


def test_weights_and_configuration_count_and_the_rest_does_not(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"1" * 100)
    (tmp_path / "config.json").write_text("{}")
    first = model_digest(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(b"2")
    (tmp_path / "rlx").mkdir()
    assert model_digest(tmp_path) == first
    assert len(first) == 12
    (tmp_path / "model.safetensors").write_bytes(b"1" * 99 + b"2")
    assert model_digest(tmp_path) != first


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no model: it has no file ending in"):
        model_digest(tmp_path)
