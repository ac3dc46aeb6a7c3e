"""The pages in docs/: their tables, commands and snippets; and their commands without a download."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_stubs import stub

DOCS = Path(__file__).resolve().parents[2] / "docs"
LANGUAGES = ("en", "zh")


def read(language: str, name: str) -> str:
    return (DOCS / language / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of one kind, for example `bash`; of no kind: an empty text."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == kind]


def tables(text: str) -> list[list[list[str]]]:
    """Each table outside of fenced blocks as its rows, each row as its cells; the first row is the header."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found: list[list[list[str]]] = []
    previous = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                found.append([])
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if set("".join(cells)) != {"-"}:
                found[-1].append(cells)
        previous = line
    return found


def flags(text: str) -> list[str]:
    """The names of all `--flags`, in order."""
    return re.findall(r"(?<![\w-])--([a-z]\w*)", text)


def swift_commands(text: str) -> list[list[str]]:
    """The words after `swift rlhf` of each such command in the bash blocks."""
    found = []
    for block in blocks(text, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words[:2] == ["swift", "rlhf"]:
                found.append(words[2:])
    return found


def parser() -> Callable[[list[str]], Any]:
    """What `swift rlhf` makes of its words, with everything that it checks; unknown words are an error."""
    from swift import RLHFArguments
    from swift.utils import parse_args

    def parse(words: list[str]) -> Any:
        arguments, unknown = parse_args(RLHFArguments, words)
        assert not unknown
        return arguments

    return parse


def without_downloads(words: list[str], model: Path, data: Path, output: Path) -> list[str]:
    """The words of a command with a tiny model, local data and a local folder for what they name."""
    stub(output)
    local = {
        "--model": str(model),
        "--dataset": str(data),
        "--val_dataset": str(data),
        "--resume_from_checkpoint": str(output),
    }
    words = list(words)
    for index, word in enumerate(words[:-1]):
        if word in local:
            words[index + 1] = local[word]
    quick = "--model_type llama --template chatml --torch_dtype float32 --fp16 false --bf16 false"
    offline = f"--check_model false --use_cpu true --add_version false --output_dir {output}"
    return words + quick.split() + offline.split()
