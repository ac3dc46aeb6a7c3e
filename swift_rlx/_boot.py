"""Puts the import finder of this package in place, at the start of every Python process or on request.

`swift_rlx.pth` (read by `site` up to Python 3.17) and `swift_rlx.start` (from 3.15, PEP 829) lie beside the
installed package. The `.pth` line holds the finder's source instead of importing this module: a process
that never imports ms-swift then pays one small `compile` and imports nothing, whether or not there are
`.pyc` files. The finder waits for the first import of a module inside `swift`, and only then loads
`swift_rlx._hooks`.

Invariants: at most one finder of ours is on `sys.meta_path` (in a virtual environment `site` reads every
`.pth` file twice); a half-removed package never stops another program. Standard library only.
"""

import sys

TYPE_CHECKING = False  # `swift_rlx.start` imports this module at every start, and `typing` takes milliseconds
if TYPE_CHECKING:
    from typing import Any

# `swift_rlx` marks the finder as ours and holds the reason why `_hooks` could not be loaded, or None. `n`,
# `p`, `t` are the name, path and target of importlib's finder protocol. A class defined in a `.pth` line
# has no global name by which its functions could find it, hence the class method.
FINDER = """\
class F:
    swift_rlx = None
    @classmethod
    def find_spec(c, n, p=None, t=None):
        if n[:6] == 'swift.' and c.swift_rlx is None:
            try:
                from swift_rlx._hooks import hooks
            except Exception as e:
                c.swift_rlx = f'swift_rlx._hooks cannot be imported: {e!r}'
                return None
            return hooks.find_spec(n, p, t)
sys.meta_path.insert(0, F)
"""

# `site` executes a line of a .pth file only if it begins with `import` and holds no line break.
PTH = (
    'import sys; any(hasattr(f, "swift_rlx") for f in sys.meta_path) or exec("'
    + FINDER.replace("    ", " ").replace("\n", "\\n")
    + '")\n'
)

START = "swift_rlx._boot:install\n"


def finder() -> "Any":
    """The finder of this package on `sys.meta_path`, or None."""
    return next((f for f in sys.meta_path if hasattr(f, "swift_rlx")), None)


def install() -> None:
    """Put the finder on `sys.meta_path`, where no `.pth` file has done so. Calling it again does nothing.

    Needed with `pip install --target`, `PYTHONPATH`, zip applications and `python -S`. Call it before
    anything of ms-swift is imported: modules that are already there get their callbacks at once, but names
    that others have imported from them stay as they are.
    """
    if finder() is None:
        exec(FINDER, {"sys": sys, "__name__": __name__})
    if "swift" in sys.modules:
        from swift_rlx._hooks import hooks

        hooks.load_plugins()
