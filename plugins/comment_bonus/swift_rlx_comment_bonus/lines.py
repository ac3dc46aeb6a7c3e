"""Which lines of some code are commented."""

from dataclasses import dataclass

from swift_rlx_comment_bonus.syntax import Syntax


@dataclass(frozen=True)
class LineCount:
    """filled: lines that are not blank. commented: those with words in a comment. coded: those with code."""

    filled: int
    commented: int
    coded: int


def count_lines(code: str, syntax: Syntax) -> LineCount:
    """Count lines; a line of code with a comment behind it is both coded and commented."""
    commented: set[int] = set()
    coded: set[int] = set()
    number = 0
    position = 0
    if code.startswith("#!"):  # an interpreter line explains nothing
        coded.add(0)
        position = code.find("\n") if "\n" in code else len(code)
    while position < len(code):
        token = syntax.match(code, position)
        assert token is not None, "the last alternative takes any character"
        text = token.group()
        # A string counts as documentation where nothing stands before it on its line.
        is_comment = token.lastgroup == "comment" or (token.lastgroup == "doc" and number not in coded)
        for offset, line in enumerate(text.split("\n")):
            if is_comment and any(character.isalnum() for character in line):
                commented.add(number + offset)
            elif not is_comment and line.strip():
                coded.add(number + offset)
        number += text.count("\n")
        position = token.end()
    filled = sum(bool(line.strip()) for line in code.split("\n"))
    return LineCount(filled=filled, commented=len(commented), coded=len(coded))
