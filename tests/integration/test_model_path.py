"""A model that is meant as a folder and is not there; what is the id of a hub is left to the hub."""

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.model_path import refuse_folder_without_model, refuse_missing_folder


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


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([], r"the folder '/.*/m' has no config.json, so there is no model in it; give that of a model"),
        (["tokenizer.json", "model.safetensors"], "has no config.json"),
        (["config.json", "tokenizer.json"], "has no weights, so there is no model in it"),
        (
            ["adapter_config.json", "adapter_model.safetensors"],
            "it holds an adapter; give it as --ref_adapters, and here the model that it was trained on",
        ),
    ],
)
def test_a_folder_without_a_model_is_refused(files, sentence, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    with pytest.raises(ConfigError, match=f"^--ref_model {folder} is refused: .*{sentence}"):
        refuse_folder_without_model("--ref_model", str(folder))


@pytest.mark.parametrize("weights", ["model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_a_folder_with_a_model_and_the_id_of_a_hub_are_let_through(weights, tmp_path):
    for name in ("config.json", weights):
        (tmp_path / name).touch()
    refuse_folder_without_model("--model", str(tmp_path))
    refuse_folder_without_model("--model", "Qwen/Qwen2.5-0.5B")
