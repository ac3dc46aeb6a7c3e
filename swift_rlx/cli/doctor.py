"""`swift-rlx doctor`: can `swift rlhf --rlhf_type rloo` run here, and if not, why and what to do."""

import argparse
import shutil
import sys

from swift_rlx.cli.checks import Report
from swift_rlx.cli.diagnosis import diagnose
from swift_rlx.cli.environment import read_environment
from swift_rlx.cli.probe import ask

HELP = "say whether `swift rlhf --rlhf_type rloo` can run here and what to do if not"
EXAMPLE = """\
Exit code 0: rloo can run. 1: it cannot; the lines that FAIL say why. A WARN does not change the exit code.

example:
    swift-rlx doctor
    swift-rlx doctor --json > doctor.json
    swift-rlx doctor --endpoint http://gpu7:8000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--endpoint`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="instead: say what a running server of vLLM or SGLang can do, and the command that starts one as needed",
    )


def run(options: argparse.Namespace) -> int:
    """Print the report and return its exit code."""
    report = _installation() if options.endpoint is None else _endpoint(options.endpoint)
    print(report.as_json() if options.json else report.as_text(_width()), end="\n" if options.json else "")
    return report.exit_code


def _installation() -> Report:
    if sys.stderr.isatty():
        sys.stderr.write("starting a Python interpreter that imports ms-swift, as `swift` does ...\n")
    return diagnose(read_environment(), ask())


def _endpoint(address: str) -> Report:
    from swift_rlx.cli.endpoint_checks import endpoint_report  # brings an HTTP client

    return endpoint_report(address)


def _width() -> int:
    """Columns to wrap at; a file or pipe gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
