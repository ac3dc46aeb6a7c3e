"""Make a virtual environment that holds the known-good set and this package, editable.

    python3.11 .ci/environment.py .venv --constraints .ci/constraints-4.6.0.txt --extras math gguf

This file checks the Python version and nothing else. It is written so that every Python reads it, Python 2
too: a wrong one gets a sentence and not a SyntaxError.
"""

import os
import sys

SUPPORTED = ((3, 11), (3, 12), (3, 13))


def refusal(version_info):
    """The sentence for a Python outside the range of the known-good set, or None."""
    if tuple(version_info[:2]) in SUPPORTED:
        return None
    return (
        "error: Python "
        + ".".join(str(part) for part in version_info[:3])
        + " at "
        + str(sys.executable)
        + " cannot run the known-good set of packages, which needs 3.11, 3.12 or 3.13; install one of them "
        + "and name it, as in: make quickstart PYTHON=python3.11\n"
    )


if __name__ == "__main__":
    sentence = refusal(sys.version_info)
    if sentence:
        sys.stderr.write(sentence)
        sys.exit(1)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from environment_builder import main

    sys.exit(main(sys.argv[1:]))
