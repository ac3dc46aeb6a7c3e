"""The files of a new reward package, by path; `{{NAME}}` and `{{DISTRIBUTION}}` are filled in."""

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "{{DISTRIBUTION}}"
version = "0.1.0" # raise it whenever a score changes: it is kept with every score
description = "Reward {{NAME}} for the training of language models"
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.10"
keywords = ["reward", "rlhf", "rloo", "ms-swift", "swift-rlx"]
dependencies = []

[project.optional-dependencies]
test = ["pytest>=8", "swift-rlx"]

# The name for --reward_funcs = "package:function"
[project.entry-points."swift_rlx.rewards"]
{{NAME}} = "{{NAME}}:{{NAME}}"

[tool.hatch.build.targets.wheel]
packages = ["{{NAME}}"]

[tool.hatch.build.targets.sdist]
include = ["{{NAME}}", "tests", "README.md"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""

CODE = '''\
"""The reward {{NAME}}."""

__all__ = ["{{NAME}}"]


def {{NAME}}(completion: str, **columns: object) -> float | None:
    """A number for one completion, the higher the better; None where it cannot be told.

    A parameter more, such as `solution: str`, is a column of the data set. Put your own rule in the place of this one,
    which gives 1 to a completion that ends like a sentence.
    """
    return float(completion.rstrip().endswith((".", "!", "?", "。", "！", "？")))
'''

TEST = """\
from {{NAME}} import {{NAME}}

from swift_rlx.testing import Example, check_reward


def test_it_keeps_the_rules_of_a_reward():
    check_reward({{NAME}}, examples=[Example("It is.", expected=1.0), Example("是", expected=0.0)])
"""

README = """\
# {{DISTRIBUTION}}

A reward for the training of language models with ms-swift and swift-rlx. 用于 ms-swift 与 swift-rlx 的奖励函数。

    pip install {{DISTRIBUTION}}
    swift rlhf --rlhf_type rloo --reward_funcs {{NAME}} ...

It is found by its name; no `--external_plugins` is needed. 安装后即可按名称使用。

## Test, build, publish

    pip install -e '.[test]' && pytest
    pip install build twine && python -m build && twine upload dist/*

The test's one line, `check_reward`, checks what every reward must do: one finite number or None per completion, the
same score again, no dependence on the order, no surprise from odd text.
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "NAME/__init__.py": CODE,
    "NAME/py.typed": "",
    "tests/test_NAME.py": TEST,
    ".gitignore": "dist/\n*.egg-info/\n__pycache__/\n",
}
