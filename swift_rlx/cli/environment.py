"""What can be said about this machine and its packages without importing any of them."""

import errno
import importlib.metadata
import os
import platform
import re
import shutil
import site
import socket
import sys
from dataclasses import dataclass

from swift_rlx import _boot

PACKAGES = ("ms-swift", "torch", "transformers", "trl", "peft")
ENGINES = ("vllm", "sglang")
# Both files are installed. Python 3.15 and later reads the second and leaves out the first (PEP 829).
HOOK_FILE, HOOK_TEXT = (
    ("swift_rlx.start", _boot.START) if sys.version_info >= (3, 15) else ("swift_rlx.pth", _boot.PTH)
)


@dataclass(frozen=True)
class Environment:
    """Facts about an interpreter. Versions are None for what is not installed."""

    executable: str
    python: str
    system: str
    own_version: str | None
    supported: str
    """The requirement on ms-swift in our metadata, such as `ms-swift<4.7,>=4.5.2`."""
    packages: dict[str, str | None]
    engines: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    """Our optional extras: distribution and version of each of their requirements."""
    hook_files: dict[str, bool]
    """Path of each HOOK_FILE where `site` looks, and whether its text is that of this version."""
    swift_command: str | None
    bin_folder: str
    plugins_choice: str | None
    strict: str | None
    port: str
    """Where the ranks of a run on this machine meet: MASTER_PORT, else torch's own."""
    port_problem: str | None


def read_environment() -> Environment:
    """The facts about this process's interpreter."""
    requirements = _own_requirements()
    port = os.environ.get("MASTER_PORT", "29500")
    return Environment(
        executable=sys.executable,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        own_version=installed_version("swift-rlx"),
        supported=next((r for r in requirements if r.startswith("ms-swift")), "ms-swift"),
        packages={name: installed_version(name) for name in PACKAGES},
        engines={name: installed_version(name) for name in ENGINES},
        extras=_extras(requirements),
        hook_files=_hook_files(),
        swift_command=shutil.which("swift"),
        bin_folder=os.path.dirname(sys.executable),
        plugins_choice=os.environ.get("SWIFT_PLUGINS"),
        strict=os.environ.get("SWIFT_PLUGINS_STRICT"),
        port=port,
        port_problem=port_problem(port),
    )


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, read from its metadata; None if there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def port_problem(port: str) -> str | None:
    """Why nobody can listen on this port; None where one can, or for another reason cannot."""
    try:
        with socket.create_server(("", int(port))):
            return None
    except (ValueError, OverflowError):
        return "is no port"
    except OSError as error:
        return "is taken by another program" if error.errno == errno.EADDRINUSE else None


def _own_requirements() -> list[str]:
    try:
        return importlib.metadata.requires("swift-rlx") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _extras(requirements: list[str]) -> dict[str, dict[str, str | None]]:
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if name and extra and extra[1] != "dev":
            extras.setdefault(extra[1], {})[name[0]] = installed_version(name[0])
    return extras


def _hook_files() -> dict[str, bool]:
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    found = {}
    for path in dict.fromkeys(os.path.join(folder, HOOK_FILE) for folder in folders):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found[path] = file.read() == HOOK_TEXT
    return found
