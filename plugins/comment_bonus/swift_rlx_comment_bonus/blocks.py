"""The code of a completion."""

import re
from dataclasses import dataclass

from swift_rlx_comment_bonus.syntax import Syntax, syntax_of

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[^\s`{]*)[^`]*")


@dataclass(frozen=True)
class CodeBlock:
    """Text between two fences, or a whole completion without any, with the syntax of its language."""

    text: str
    syntax: Syntax


def code_blocks(completion: str) -> list[CodeBlock]:
    """Fenced blocks; an unclosed one reaches to the end. Without a fence, the whole completion as one
    block."""
    blocks: list[tuple[str, list[str]]] = []
    fence: str | None = None  # of the block that is open
    for line in completion.splitlines():
        mark = _FENCE.fullmatch(line)
        if fence is None:
            if mark:
                fence = mark["fence"]
                blocks.append((mark["language"], []))
        elif mark and mark["fence"].startswith(fence) and not mark["language"]:
            fence = None
        else:
            blocks[-1][1].append(line)
    if not blocks:
        blocks = [("", completion.splitlines())]
    found = []
    for language, lines in blocks:
        text = "\n".join(lines)
        syntax = syntax_of(language, text)
        if syntax is not None:
            found.append(CodeBlock(text, syntax))
    return found
