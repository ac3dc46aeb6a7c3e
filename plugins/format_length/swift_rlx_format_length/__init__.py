"""A reward for the form of a completion, in any language: length, ending, repetition, shape, thinking
block."""

from swift_rlx_format_length.reward import FormatLength

__all__ = ["FormatLength"]
