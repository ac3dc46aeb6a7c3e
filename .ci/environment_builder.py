"""Build a virtual environment with pip, once.

A stamp, written last, holds hashes of all that the environment depends on: with a matching stamp there is
nothing to do, without one the environment is half made and is built again from nothing. pip's output goes to
`pip.log` in the environment. Every failure is one sentence on stderr and exit code 1.
"""

import argparse
import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pip_failure import explain

REPOSITORY = Path(__file__).resolve().parents[1]
LIST_REQUIREMENTS = REPOSITORY / ".ci" / "list_requirements.py"
STAMP = "swift-rlx-environment"
GB = 10**9
ENVIRONMENT_BYTES = 3 * GB  # 2.3 GB with the CPU build of torch, which is the smallest
PARTLY_BYTES = GB  # more with vLLM, which is the largest
SCRATCH_BYTES = GB  # pip unpacks wheels in the temporary folder and keeps downloads in its cache
FULL_BYTES = 20_000_000  # less than this left after a failure: the disk is what failed
# Set by a user for other purposes, these would send packages elsewhere or let others in.
UNWANTED_VARIABLES = (
    "PIP_PREFIX",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_TARGET",
    "PIP_USER",
    "PYTHONHOME",
    "PYTHONPATH",
)


class BuildError(Exception):
    """The environment cannot be built; the text is the whole message for the user."""


@dataclass(frozen=True)
class Recipe:
    """What goes into the environment at `path`."""

    path: Path
    constraints: Path
    extras: str  # of this package, comma separated, may be empty
    packages: tuple[str, ...]
    without_dependencies: tuple[str, ...]
    partly: tuple[str, ...] = ()  # packages some of whose requirements are left out
    left_out: tuple[str, ...] = ()  # those

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.path / "pip.log"

    @property
    def requirements(self) -> Path:
        """What the packages of `partly` require, but for what is left out."""
        return self.path / "partly.txt"

    @property
    def bytes(self) -> int:
        return ENVIRONMENT_BYTES + (PARTLY_BYTES if self.partly else 0)

    def stamp(self) -> list[str]:
        """Two hashes: of what takes a new environment to change, and of what pip can add to an old one."""
        base = [str(self.path), sys.version, sys.base_prefix, self.constraints.read_text()]
        base += [*self.without_dependencies, *self.partly, "without", *self.left_out]
        package = [str(REPOSITORY), self.extras, *self.packages, (REPOSITORY / "pyproject.toml").read_text()]
        package += [(REPOSITORY / name).read_text() for name in ("swift_rlx.pth", "swift_rlx.start")]
        return [hashlib.sha256("\0".join(parts).encode()).hexdigest() for parts in (base, package)]


def read_stamp(recipe: Recipe) -> list[str]:
    """The stamp in the environment; empty where the environment is missing or half made."""
    stamp = recipe.path / STAMP
    return stamp.read_text().split() if recipe.python.exists() and stamp.exists() else []


def is_ready(recipe: Recipe) -> bool:
    return read_stamp(recipe) == recipe.stamp()


def check_python() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise BuildError(
            f"{sys.executable} lacks the module {missing[0]!r}, which makes virtual environments; on Debian "
            f"and Ubuntu it is in the package python{version}-venv"
        )


def check_ours(path: Path) -> None:
    """Refuse to replace anything but a virtual environment."""
    if not path.exists():
        return
    if not path.is_dir() or (any(path.iterdir()) and not (path / "pyvenv.cfg").exists()):
        raise BuildError(f"{path} is no virtual environment; move it away or choose another path")


def needed_space(path: Path, environment_bytes: int = ENVIRONMENT_BYTES) -> dict[Path, int]:
    """Bytes needed for each folder that pip writes to, one entry per file system."""
    cache = Path(os.environ.get("PIP_CACHE_DIR") or Path.home() / ".cache")
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    needs: dict[int, tuple[Path, int]] = {}
    for folder, size in ((path, environment_bytes), (cache, SCRATCH_BYTES), (temporary, SCRATCH_BYTES)):
        while not folder.exists():
            folder = folder.parent
        first, total = needs.get(folder.stat().st_dev, (folder, 0))
        needs[folder.stat().st_dev] = (first, total + size)
    return dict(needs.values())


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def check_space(path: Path, environment_bytes: int) -> None:
    for folder, needed in needed_space(path, environment_bytes).items():
        if free_bytes(folder) < needed:
            raise BuildError(
                f"the disk that holds {folder} has {free_bytes(folder) / GB:.1f} GB free and the "
                f"installation needs {needed / GB:.0f} GB there; make room, or move the clone (TMPDIR and "
                "PIP_CACHE_DIR move pip's own files)"
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time build the environment. The folder itself is the lock, so it is kept."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def run(command: list[str], recipe: Recipe, title: str) -> None:
    """Run one stage, its output to the log; on a terminal a running clock shows that it is alive."""
    began = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in UNWANTED_VARIABLES}
    environment.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONNOUSERSITE="1")
    with recipe.log.open("ab") as output:
        log_start = output.tell()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None:
            if sys.stdout.isatty():
                print(f"\r  {title}: {time.monotonic() - began:.0f} s", end="", flush=True)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
    start = "\r" if sys.stdout.isatty() else ""
    print(f"{start}  {recipe.path.name}: {title}: {time.monotonic() - began:.0f} s", flush=True)
    if process.returncode != 0:
        output_of_stage = recipe.log.read_bytes()[log_start:].decode(errors="replace")
        full = [str(folder) for folder in needed_space(recipe.path) if free_bytes(folder) < FULL_BYTES]
        raise BuildError(explain(output_of_stage, title=title, log=recipe.log, full=full))


def clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def build(recipe: Recipe) -> None:
    """Make the environment from nothing, or only this package anew where nothing else changed; stamp last."""
    has_base = read_stamp(recipe)[:1] == recipe.stamp()[:1]
    if has_base:
        (recipe.path / STAMP).unlink()
    else:
        clear(recipe.path)
        check_space(recipe.path, recipe.bytes)
        (recipe.path / "pyvenv.cfg").touch()  # from here on the folder is ours, however the next lines end
    # Compiling all modules takes half of the time; Python compiles those that are imported, and keeps them.
    pip = [str(recipe.python), "-m", "pip", "install", "--progress-bar", "off", "--no-compile"]
    pip += ["--constraint", str(recipe.constraints)]
    this = f"{REPOSITORY}[{recipe.extras}]" if recipe.extras else str(REPOSITORY)
    if not has_base:
        run([sys.executable, "-m", "venv", str(recipe.path)], recipe, "making the virtual environment")
        run([*pip, "torch"], recipe, "installing torch")
    wanted = [*recipe.packages, "--editable", this]
    if recipe.partly:
        names = ", ".join(recipe.partly)
        if not has_base:
            run([*pip, "--no-deps", *recipe.partly], recipe, f"installing {names}")
        script = [str(recipe.python), str(LIST_REQUIREMENTS), str(recipe.requirements), *recipe.partly]
        run([*script, "--without", *recipe.left_out], recipe, f"reading what {names} requires")
        wanted += ["--requirement", str(recipe.requirements)]
    run([*pip, *wanted], recipe, "installing ms-swift and this package")
    if recipe.without_dependencies and not has_base:
        names = ", ".join(recipe.without_dependencies)
        run([*pip, "--no-deps", *recipe.without_dependencies], recipe, f"installing {names}")
    (recipe.path / STAMP).write_text("\n".join(recipe.stamp()) + "\n")


def parse(arguments: list[str]) -> Recipe:
    parser = argparse.ArgumentParser(description="Make a virtual environment with the known-good set, once.")
    parser.add_argument("path", type=Path, help="folder of the environment")
    parser.add_argument("--constraints", type=Path, required=True, help="file for pip's --constraint")
    parser.add_argument("--extras", default="", help="extras of this package, comma separated")
    parser.add_argument("--packages", nargs="*", default=[], help="further packages")
    parser.add_argument("--no-deps", nargs="*", default=[], help="packages without what they require")
    parser.add_argument(
        "--partly", nargs="*", default=[], help="packages without --left-out of what they require"
    )
    parser.add_argument("--left-out", nargs="*", default=[], help="requirements that --partly goes without")
    given = parser.parse_args(arguments)
    return Recipe(
        path=given.path.absolute(),
        constraints=given.constraints.absolute(),
        extras=given.extras,
        packages=tuple(given.packages),
        without_dependencies=tuple(given.no_deps),
        partly=tuple(given.partly),
        left_out=tuple(given.left_out),
    )


def make(recipe: Recipe) -> None:
    """Build unless the environment is there already."""
    if is_ready(recipe):
        return
    check_python()
    check_ours(recipe.path)
    recipe.path.mkdir(parents=True, exist_ok=True)
    with locked(recipe.path):
        if not is_ready(recipe):  # somebody else may have built it while we waited
            print(f"environment {recipe.path} (log: {recipe.log})", flush=True)
            build(recipe)


def main(arguments: list[str]) -> int:
    try:
        make(parse(arguments))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = error.filename or "the environment"
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        print(f"error: cannot write {where}: {reason}; make room or choose another folder", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; the next call builds the environment again", file=sys.stderr)
        return 130
    return 0
