"""How languages write comments and strings, as one regular expression each.

Every pattern matches in time linear in the text: a completion may be long, broken, or made to be slow.
"""

import re

_DOUBLE, _SINGLE, _BACKTICK = r'"(?:\\.|[^"\\\n])*"', r"'(?:\\.|[^'\\\n])*'", r"`(?:\\.|[^`\\])*`"
_BLOCK = r"/\*.*?(?:\*/|\Z)"


# Matches at any position; its groups are `comment`, `doc` (a free-standing string) and `other`.
Syntax = re.Pattern[str]


def _syntax(comments: list[str], strings: list[str], docs: str = r"(?!)") -> Syntax:
    # An escape outside a string is one token, so that a quote after a backslash never opens a string. Without
    # that, a long line of escaped quotes would be searched to its end from each of them.
    other = "|".join([*strings, r"\\.", r"\w+", "."])
    return re.compile(rf"(?P<comment>{'|'.join(comments)})|(?P<doc>{docs})|(?P<other>{other})", re.DOTALL)


_PYTHON = _syntax(
    comments=[r"#[^\n]*"],
    strings=[_DOUBLE, _SINGLE],
    docs=r'"""(?:\\.|[^\\])*?(?:"""|\\?\Z)|' + r"'''(?:\\.|[^\\])*?(?:'''|\\?\Z)",
)
# In these a # inside a word is no comment: $#, ${#name}, a#b.
_HASH = _syntax(comments=[r"(?<!\S)#[^\n]*"], strings=[_DOUBLE, _SINGLE])
_SLASH = _syntax(comments=[r"//[^\n]*", _BLOCK], strings=[_DOUBLE, _SINGLE, _BACKTICK])
_PHP = _syntax(comments=[r"//[^\n]*", r"(?<!\S)#(?!\[)[^\n]*", _BLOCK], strings=[_DOUBLE, _SINGLE])
_DASH = _syntax(comments=[r"--[^\n]*", _BLOCK], strings=[_DOUBLE, _SINGLE])
_MARKUP = _syntax(comments=[r"<!--.*?(?:-->|\Z)"], strings=[_DOUBLE])

_NAMES: dict[str, Syntax | None] = {
    "python py python3 py3 pycon": _PYTHON,
    "sh bash zsh shell console ruby rb perl pl r julia jl elixir ex nim": _HASH,
    "yaml yml toml make makefile cmake dockerfile": _HASH,
    "c h cpp c++ cc cxx hpp cuda cu objc java groovy kotlin kt scala csharp cs c#": _SLASH,
    "javascript js jsx mjs typescript ts tsx go golang rust rs swift dart zig proto scss less css": _SLASH,
    "php": _PHP,
    "sql lua haskell hs ada elm": _DASH,
    "html xml svg vue": _MARKUP,
    # Fenced, but not code that somebody should comment.
    "text txt plaintext output log json jsonl csv diff markdown md math latex mermaid": None,
}
_BY_NAME = {name: syntax for names, syntax in _NAMES.items() for name in names.split()}

_SLASH_SIGNS = re.compile(r"^[ \t]*(?://|/\*|#include\b)|[;{][ \t]*$", re.MULTILINE)
_HASH_SIGNS = re.compile(r"^[ \t]*(?:#(?!include\b)|def |import |from |class )|:[ \t]*$", re.MULTILINE)


def syntax_of(language: str, text: str) -> Syntax | None:
    """The syntax for a fence's language; guessed from the text where the language is unknown. None: not
    code."""
    if language.lower() in _BY_NAME:
        return _BY_NAME[language.lower()]
    slashes, hashes = len(_SLASH_SIGNS.findall(text)), len(_HASH_SIGNS.findall(text))
    return _SLASH if slashes > hashes else _PYTHON
