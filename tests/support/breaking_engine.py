"""The transformers engine with faults that happen once each, however often its worker is started.

`EngineSpec("breaking_engine:create", options={"faults": folder})`; a file in the folder is a fault that will happen:
`end` ends the thread that decodes, `tear` fails a publish midway.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swift_rlx.backends import EngineSpec, transformers_weights
from swift_rlx.backends.transformers_engine import TransformersEngine
from swift_rlx.backends.transformers_engine import create as create_transformers


def create(spec: EngineSpec) -> TransformersEngine:
    folder = Path(str(spec.options["faults"]))
    engine = create_transformers(replace(spec, options={}))
    begin, load_file = engine._decoder._begin, transformers_weights.load_file

    def happens(fault: str) -> bool:
        planted = (folder / fault).exists()
        (folder / fault).unlink(missing_ok=True)
        return planted

    def beginning() -> None:
        if happens("end"):
            raise RuntimeError("the planted end")
        begin()

    def loading(path: Path) -> object:
        if happens("tear"):
            raise OSError("the planted tear")
        return load_file(path)

    engine._decoder._begin = beginning
    transformers_weights.load_file = loading
    return engine
