"""Folders with the files of a LoRA checkpoint, none of which can be loaded."""

import json
from pathlib import Path

FILES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "training_args.bin",
)


def stub(folder: Path, without: tuple[str, ...] = (), **state: object) -> Path:
    """A checkpoint that looks complete, but for the files in `without`; `state`: what is in `rlx/state.json`."""
    texts = dict.fromkeys(FILES, "{}")
    texts |= {"rlx/state.json": json.dumps({"buffer_in_use": False, **state}), "trainer_state.json": "{}"}
    for name, text in texts.items():
        if name not in without:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return folder
