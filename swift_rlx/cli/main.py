"""Entry point of `swift-rlx`.

A sub-command is a module with the text `HELP`, the text `EXAMPLE`, `add_arguments(parser)` and
`run(options) -> exit code`. Such a module imports nothing heavy before `run`.

Exit codes: 0 done; 1 refused or failed, one sentence on stderr; 2 wrong arguments, one sentence on stderr;
130 interrupted; 141 the reader of the output went away.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from swift_rlx import __version__
from swift_rlx.cli import doctor, reward, simulate, store, version
from swift_rlx.errors import ConfigError, RlxError

COMMANDS = {
    "doctor": doctor,
    "reward": reward,
    "simulate": simulate,
    "store": store,
    "version": version,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command with `argv` (default: the process's arguments) and return its exit code."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.run is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except ConfigError as error:
        return _refuse(error, 2)
    except RlxError as error:
        return _refuse(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit, which would fail again and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `run` of the parsed options is the chosen command's, or None."""
    parser = _OneSentenceParser(
        prog="swift-rlx",
        description="Companion of `swift rlhf --rlhf_type rloo | reinforce_pp | reinforce_pp_baseline`.",
    )
    parser.add_argument("--version", action="version", version=f"swift-rlx {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=f"{command.HELP[0].upper()}{command.HELP[1:]}.",
            epilog=command.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def _refuse(error: RlxError, code: int) -> int:
    sys.stderr.write(f"swift-rlx: error: {error}\n")
    return code


class _OneSentenceParser(argparse.ArgumentParser):
    """Of this class are the parsers of all commands too, so that each answers for its own flags.

    A flag may be typed with underscores, as those of `swift rlhf` are: several are the same.
    """

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)
        options, unknown = super().parse_known_args([self._own(word) for word in self._words], namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def _own(self, word: str) -> str:
        """The word, with a flag as this parser spells it."""
        flag, equals, value = word.partition("=")
        dashed = flag.replace("_", "-")
        return f"{dashed}{equals}{value}" if dashed in self._option_string_actions else word

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"swift-rlx: error: {message}{self._suggestion()}; see `{self.prog} --help`\n")

    def _suggestion(self) -> str:
        """For the first flag that is none, also where the error is that the meant one is missing."""
        known = list(self._option_string_actions)
        for word in self._words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and not any(one.startswith(flag) for one in known):
                close = difflib.get_close_matches(flag, known, n=1)
                return f"; did you mean {close[0]} in the place of {flag}?" if close else ""
        return ""
