"""A model that is meant as a folder, and is not there or no model, told before anything is loaded or a hub asked."""

import os
from pathlib import Path

from swift_rlx.errors import ConfigError

BEGINS = ("/", "./", "../", "~")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".index.json")
ADAPTERS = {"--model": "--adapters", "--ref_model": "--ref_adapters"}


def refuse_missing_folder(flag: str, model: str) -> None:
    """Raise ConfigError for a path where nothing is.

    A path begins with /, ./, ../ or ~, or is below a folder that is there. `owner/name` is an id of a hub, also where a
    folder has the owner's name.
    """
    path = Path(model).expanduser()
    is_below_folder = model.count("/") > 1 and path.parent.is_dir()
    if (model.startswith(BEGINS) or is_below_folder) and not path.exists():
        raise ConfigError(
            f"{flag} {model} is refused: there is no folder '{os.path.abspath(path)}'; give that of a model, or the"
            " model's id on ModelScope or Hugging Face"
        )


def refuse_folder_without_model(flag: str, model: str) -> None:
    """Raise ConfigError for a folder without a configuration or without weights.

    Nothing is read; what is no folder here is left to the hub.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return
    names = [path.name for path in folder.iterdir()]
    if "config.json" in names and any(name.endswith(WEIGHTS) for name in names):
        return
    if "adapter_config.json" in names:
        raise ConfigError(
            f"{flag} {model} is refused: it holds an adapter; give it as {ADAPTERS[flag]}, and here the model that it"
            " was trained on"
        )
    lacking = "no weights" if "config.json" in names else "no config.json"
    raise ConfigError(
        f"{flag} {model} is refused: the folder '{folder.absolute()}' has {lacking}, so there is no model in it; give"
        " that of a model, or the model's id on ModelScope or Hugging Face"
    )
