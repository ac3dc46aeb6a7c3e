"""The reward packages of this repository, built, installed and used by name as a user would."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {
    "plugins/comment_bonus": ("comment_bonus", "swift-rlx-comment-bonus 0.1.0"),
    "plugins/format_length": ("format_length", "swift-rlx-format-length 0.1.0"),
    "plugins/judge": ("judge", "swift-rlx-judge 0.1.0"),
    "plugins/math_answer": ("math_answer", "swift-rlx-math-answer 0.1.0"),
    "plugins/rules": ("rules", "swift-rlx-rules 0.1.0"),
    "plugins/semantic_similarity": ("semantic_similarity", "swift-rlx-semantic-similarity 0.1.0"),
    "examples/reward_package": ("last_line", "my-last-line 0.1.0"),
}

USE_BY_NAME = """
import json, sys
from swift_rlx.rewards import checked_reward, resolve_reward
reward = resolve_reward(sys.argv[1])
scores = checked_reward(reward)(["# add one\\nx = x + 1", "It is.\\n42"], solution=["42", "42"])
print(json.dumps({"provider": str(reward.spec.provider), "version": reward.spec.version, "scores": scores}))
"""


def run(*command, **environment):
    result = subprocess.run(
        [str(word) for word in command],
        cwd=environment.pop("cwd", None),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "scores"),
    [
        ("plugins/comment_bonus", [0.5, 0.0]),
        ("plugins/format_length", [2 / 3, 2 / 3]),
        ("examples/reward_package", [0.0, 1.0]),
    ],
)
def test_a_reward_package_is_built_installed_and_used_by_name(folder, scores, tmp_path):
    name, provider = PACKAGES[folder]
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        tmp_path / "dist",
        cwd=REPOSITORY / folder,
    )
    [wheel] = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", site, wheel)
    output = run(
        sys.executable, "-c", USE_BY_NAME, name, PYTHONPATH=f"{site}{os.pathsep}{REPOSITORY}", cwd=tmp_path
    )
    used = json.loads(output)
    assert (used["provider"], used["version"]) == (provider, provider.split()[-1])
    assert used["scores"] == pytest.approx(scores)


@pytest.mark.slow
def test_the_example_package_passes_its_own_test():
    folder = REPOSITORY / "examples/reward_package"
    run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, PYTHONPATH=str(REPOSITORY)
    )


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_reward_package_imports_neither_this_one_nor_ms_swift(folder):
    sources = [
        path
        for path in (REPOSITORY / folder).rglob("*.py")
        if "test" not in str(path.relative_to(REPOSITORY))
    ]
    assert sources
    for path in sources:
        words = path.read_text(encoding="utf-8").replace("swift_rlx_", "")
        assert "import swift" not in words, path
        assert "from swift" not in words, path


@pytest.mark.slow
def test_a_wheel_holds_the_code_and_nothing_else(tmp_path):
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        tmp_path,
        cwd=REPOSITORY / "plugins/comment_bonus",
    )
    [wheel] = tmp_path.glob("*.whl")
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert folders == {"swift_rlx_comment_bonus", "swift_rlx_comment_bonus-0.1.0.dist-info"}
