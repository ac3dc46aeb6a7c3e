"""A folder of invented packages, and fresh interpreters that see it and this package, nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# The shape of ms-swift that the import hook relies on: `swift/__init__.py` imports a module of its own, and
# `swift.arguments` takes RLHFArguments from `rlhf_args` as its first importer.
MS_SWIFT = {
    "swift/__init__.py": "import swift.version\n",
    "swift/version.py": "__version__ = '4.6.0'\n",
    "swift/arguments/__init__.py": "from .rlhf_args import RLHFArguments\n",
    "swift/arguments/rlhf_args.py": "class RLHFArguments:\n    types = ('dpo', 'grpo')\n",
    "swift/trainers/__init__.py": "",
    "swift/trainers/trainer_factory.py": "mapping = {}\n",
}


class Sandbox:
    """Writes packages into one folder and runs code in a fresh interpreter that has it first on its path."""

    def __init__(self, folder: Path, files: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.write(files or {})

    def write(self, files: dict[str, str]) -> None:
        """Write each source text, dedented, to its path inside the folder."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")

    def distribution(self, name: str, entry_points: str) -> None:
        """Make `name` 1.0 look installed, with the given entry_points.txt."""
        self.write(
            {
                f"{name.replace('-', '_')}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n",
                f"{name.replace('-', '_')}-1.0.dist-info/entry_points.txt": entry_points,
            }
        )

    def plugin(self, name: str, source: str) -> None:
        """Install the distribution `dist-<name>` whose module `<name>` is the swift plugin `<name>`."""
        self.write({f"{name}.py": source})
        self.distribution(f"dist-{name}", f"[swift.plugins]\n{name} = {name}:register\n")

    def run(self, code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `python -S -c code arguments`; no .pth file is read and no installed package is seen."""
        return self.python("-c", textwrap.dedent(code), *arguments, **environment)

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `python -S arguments` in the folder."""
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=self.folder,
            env={"PYTHONPATH": f"{self.folder}:{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
