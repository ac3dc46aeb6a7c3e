"""The names of ms-swift's own rewards, read from its source: to import it takes seconds."""

import ast
import importlib.util
from pathlib import Path

SOURCE = "rewards/orm.py"


def stock_reward_names() -> tuple[str, ...]:
    """Those of its table `orms`; none where ms-swift is not installed."""
    try:
        package = importlib.util.find_spec("swift")
    except ImportError:  # a finder that hides it
        return ()
    files = [Path(folder, SOURCE) for folder in (package and package.submodule_search_locations) or ()]
    return tuple(name for file in files if file.is_file() for name in _names(file))


def _names(file: Path) -> list[str]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "orms":
            assert isinstance(node.value, ast.Dict)
            return [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
    return []
