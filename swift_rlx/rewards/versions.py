"""What tells two versions of a reward apart where nobody says: a digest of its code, or of a model's files."""

from __future__ import annotations

import functools
import hashlib
import inspect
import tokenize
from pathlib import Path
from typing import Any

_END_BYTES = 1 << 16
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Of these, size, begin and end count: a digest of all of it would take minutes."""


def digest_of_source(target: Any) -> str:
    """Of the file that the function or class is from, or of its own lines in a notebook; "" where there are none."""
    while isinstance(target, functools.partial):
        target = target.func
    code = target if inspect.isroutine(target) or inspect.isclass(target) else type(target)
    try:
        data = Path(inspect.getfile(code)).read_bytes()
    except (TypeError, OSError):
        try:
            data = inspect.getsource(code).encode()
        except (TypeError, OSError, SyntaxError, tokenize.TokenError):  # a name that is another file's
            return ""
    return f"code:{hashlib.sha256(data).hexdigest()[:12]}"


def digest_of_model(folder: str | Path) -> str:
    """Of the files of a model; "" where there is no such folder."""
    digest = hashlib.sha256()
    files = sorted(path for path in Path(folder).glob("*") if path.is_file()) if folder else []
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            if path.suffix in _WEIGHTS:
                digest.update(file.read(_END_BYTES))
                file.seek(max(0, path.stat().st_size - _END_BYTES))
            digest.update(file.read())
    return f"model:{digest.hexdigest()[:12]}" if files else ""
