"""A model that is meant as a folder and is not there, told before a hub is asked for it."""

import os
from pathlib import Path

from swift_rlx.errors import ConfigError

BEGINS = ("/", "./", "../", "~")


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
