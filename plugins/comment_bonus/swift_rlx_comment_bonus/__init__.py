"""A reward for commented code: the share of lines with a comment, between 0 and 1."""

from swift_rlx_comment_bonus.blocks import code_blocks
from swift_rlx_comment_bonus.lines import count_lines

__all__ = ["comment_bonus"]


def comment_bonus(completion: str, **columns: object) -> float:
    """Commented lines over non-blank lines, in all code of the completion together.

    Code is what stands in fenced blocks; without any fence it is the whole completion. 0 where there is no
    code, or nothing but comments: comments alone are not commented code.
    """
    counts = [count_lines(block.text, block.syntax) for block in code_blocks(completion)]
    filled = sum(count.filled for count in counts)
    if not any(count.coded for count in counts):
        return 0.0
    return sum(count.commented for count in counts) / filled
