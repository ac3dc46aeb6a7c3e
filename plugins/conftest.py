"""Makes the packages beside this file importable without an install, for `pytest plugins` from the
repository."""

import sys
from pathlib import Path

sys.path[:0] = [str(project.parent) for project in sorted(Path(__file__).parent.glob("*/pyproject.toml"))]
