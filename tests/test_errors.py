"""The exception tree: its docstring is right, and every error can be sent to another process."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from swift_rlx import errors

ERRORS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.RlxError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind):
    copy = pickle.loads(pickle.dumps(kind("store 'a' is refused: use 'b'")))
    assert type(copy) is kind
    assert str(copy) == "store 'a' is refused: use 'b'"


def test_a_backend_error_keeps_its_lost_tokens():
    copy = pickle.loads(pickle.dumps(errors.WorkerDied("gone").losing(7)))
    assert copy.lost_tokens == 7
    assert errors.WorkerDied("gone").lost_tokens == 0


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    parents = {"RlxError": Exception}
    stack = ["RlxError"]
    for line in errors.__doc__.splitlines():
        if found := re.match(r"    ([│ ]*)[├└]── (\w+)", line):
            depth = len(found[1]) // 4 + 1
            del stack[depth:]
            parents[found[2]] = getattr(errors, stack[-1])
            stack.append(found[2])
    assert parents == {kind.__name__: kind.__bases__[0] for kind in ERRORS}


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [("BackendTimeout", TimeoutError), ("WorkerDied", ConnectionError), ("BackendRejected", ValueError)],
)
def test_errors_are_also_what_python_calls_them(kind, builtin):
    assert issubclass(getattr(errors, kind), builtin)
