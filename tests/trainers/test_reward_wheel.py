"""Rewards from wheels of other distributions: by name in trainer and ranks, and gone when uninstalled."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs

from swift_rlx.cli.reward_new import create_package

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
NEW = "ends_well"
"""A package that `swift-rlx reward new` made."""
DISTRIBUTIONS = {
    "comment_bonus": "swift-rlx-comment-bonus",
    "format_length": "swift-rlx-format-length",
    NEW: "ends-well",
}


def call(*words: Any, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


class UserEnvironment:
    """A virtual environment with all that this one has, to install into and to uninstall from."""

    before: set[str]

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python, self.swift = folder / "bin" / "python", folder / "bin" / "swift"
        [packages] = (folder / "lib").glob("python*/site-packages")
        # An environment on top of another one reads the other's .pth files too, with the hook among them.
        base = sysconfig.get_paths()["purelib"]
        (packages / "base.pth").write_text(f"import site; site.addsitedir({base!r})\n", encoding="utf-8")
        script = f"#!{self.python}\nfrom swift.cli.main import cli_main\n\ncli_main()\n"
        self.swift.write_text(script, encoding="utf-8")  # as pip writes it
        self.swift.chmod(0o755)
        self._packages = packages

    def files(self) -> set[str]:
        """What is installed here, without what Python compiled."""
        paths = (file.relative_to(self._packages) for file in self._packages.rglob("*"))
        return {path.as_posix() for path in paths if "__pycache__" not in path.parts}

    def pip(self, *words: Any) -> None:
        done = call(sys.executable, "-m", "pip", "--python", self.python, *words, "--quiet")
        assert done.returncode == 0, done.stderr

    def rlhf(self, options: dict[str, Any], **environment: str) -> subprocess.CompletedProcess[str]:
        return call(self.swift, *runs.command(options)[1:], **environment)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> UserEnvironment:
    """Has the wheels of the reward distributions installed; `before`: the files without them."""
    folder = tmp_path_factory.mktemp("wheels")
    made = UserEnvironment(folder / "venv")
    made.before = made.files()
    new = create_package(NEW, folder)
    for name in DISTRIBUTIONS:
        build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist")
        done = call(*build, cwd=new if name == NEW else PLUGINS / name)
        assert done.returncode == 0, done.stderr
    made.pip("install", "--no-deps", "--no-index", *(folder / "dist").glob("*.whl"))
    return made


@pytest.fixture
def options(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> dict[str, Any]:
    return runs.arguments(
        tiny_model, write_rows(), tmp_path / "run", rlhf_type="rloo", reward_funcs=list(DISTRIBUTIONS)
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("ranks", [1, 2])
def test_rewards_of_wheels_work_by_name_in_every_rank(
    ranks: int, environment: UserEnvironment, options: dict[str, Any], tmp_path: Path
) -> None:
    several = {"ddp_backend": "gloo", "gradient_accumulation_steps": 1} if ranks > 1 else {}
    variables = {"NPROC_PER_NODE": str(ranks), "MASTER_PORT": runs.free_port()} if ranks > 1 else {}
    done = environment.rlhf(options | several, **variables)

    assert done.returncode == 0, done.stderr[-3000:]
    steps = [line for line in runs.log_lines(tmp_path / "run") if "loss" in line]
    assert len(steps) == 2
    for name in DISTRIBUTIONS:
        assert all(0.0 <= line[f"reward/{name}/mean"] <= 1.0 for line in steps)
    assert any(line["reward/format_length/mean"] > 0.0 for line in steps)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_uninstalled_reward_is_refused_by_name_and_stock_still_runs(
    environment: UserEnvironment, options: dict[str, Any], tmp_path: Path
) -> None:
    environment.pip("uninstall", "--yes", *DISTRIBUTIONS.values())
    assert environment.files() == environment.before
    refused = environment.rlhf(options)

    assert refused.returncode == 1
    [sentence] = [line for line in refused.stderr.splitlines() if "comment_bonus" in line]
    assert sentence.startswith("swift-rlx: error: unknown reward 'comment_bonus'")
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()

    del options["async_rollout"]  # ours alone
    stock = environment.rlhf(options | {"rlhf_type": "grpo", "reward_funcs": "format"})
    assert stock.returncode == 0, stock.stderr[-3000:]
