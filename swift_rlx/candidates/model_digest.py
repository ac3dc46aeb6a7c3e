"""What tells one model from another: a digest of all files that loading it may read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from swift_rlx.errors import ConfigError

BLOCK_BYTES = 2**22
READ = {".safetensors", ".bin", ".json", ".model", ".txt", ".jinja", ".py"}


def model_digest(folder: Path) -> str:
    """12 hexadecimal digits of the names and contents of weights, configuration, tokenizer and code.

    Raises `ConfigError` for a folder without any of them.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in READ and file.is_file())
    if not files:
        raise ConfigError(f"'{folder}' is no model: it has no file ending in {', '.join(sorted(READ))}")
    found = hashlib.blake2b(digest_size=6)
    for file in files:
        found.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            while block := opened.read(BLOCK_BYTES):
                found.update(block)
    return found.hexdigest()
