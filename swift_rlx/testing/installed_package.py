"""A package that looks installed, without pip or a virtual environment: code and metadata in a folder."""

from collections.abc import Mapping
from pathlib import Path


def fake_distribution(
    folder: Path,
    name: str,
    *,
    version: str = "1.0",
    entry_points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str],
) -> None:
    """Write modules and a dist-info folder into `folder`; once that is on `sys.path`, the package is
    installed.

    entry_points: group -> name -> "module:attribute". modules: path relative to `folder` -> source text.

    A process that has read its entry points before keeps what it has read: see `Registry.refresh`.
    """
    for path, source in modules.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source, encoding="utf-8")
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
    )
    lines = []
    for group, names in entry_points.items():
        lines.append(f"[{group}]")
        lines += [f"{each} = {value}" for each, value in names.items()]
    info.joinpath("entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
