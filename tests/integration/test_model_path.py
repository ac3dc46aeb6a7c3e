"""A model that is meant as a folder and is not there; what is the id of a hub is left to the hub."""

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.model_path import refuse_missing_folder


@pytest.mark.parametrize(
    "model", ["/nowhere/model", "./model", "../nowhere", "~/nowhere-at-all", "models/run/checkpoint-9"]
)
def test_a_path_where_nothing_is_is_refused(model, tmp_path, monkeypatch):
    (tmp_path / "models" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"--model {model} is refused: there is no folder '/.*'; give that of"
    ):
        refuse_missing_folder("--model", model)


@pytest.mark.parametrize(
    "model",
    ["models/run", "./models", "Qwen/Qwen2.5-0.5B", "models/other", "gpt2", "a/b/c", "models/run/here"],
)
def test_a_folder_that_is_there_and_the_id_of_a_hub_are_not(model, tmp_path, monkeypatch):
    (tmp_path / "models" / "run" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    refuse_missing_folder("--model", model)
