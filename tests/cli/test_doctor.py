"""The real `swift-rlx doctor`, in the environment that runs the tests and in one without ms-swift."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def _doctor(folder, **environment):
    """Run `swift-rlx doctor --json` in `folder`, with the environment's commands first on PATH."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SWIFT_PLUGINS")}
    result = subprocess.run(
        [BIN / "swift-rlx", "doctor", "--json"],
        cwd=folder,
        env=variables | {"PATH": f"{BIN}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in result.stderr
    report = json.loads(result.stdout)
    assert result.returncode == report["exit_code"]
    return {section: {c["name"]: c for c in checks} for section, checks in report["sections"].items()}, report


@pytest.fixture(scope="module")
def rewards_folder(tmp_path_factory):
    """Packages that offer a good reward, one that does not import, and one name that two of them offer."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "pack_good.py").write_text(
        "async def vowels(completion, language, *, bonus=0.0):\n    return 1.0\n"
        "def shared(completions, **columns):\n    return [1.0 for _ in completions]\n"
    )
    (folder / "pack_bad.py").write_text("import a_package_that_nobody_has\n")
    offers = {
        "pack-good": "vowels = pack_good:vowels\nshared = pack_good:shared\n",
        "pack-bad": "bad = pack_bad:reward\n",
        "pack-rival": "shared = pack_good:shared\n",
    }
    for name, points in offers.items():
        info = folder / f"{name.replace('-', '_')}-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[swift_rlx.rewards]\n{points}")
    return folder


@pytest.fixture(scope="module")
def healthy(rewards_folder, tmp_path_factory):
    """The report of an environment in which rloo runs, asked in a folder with misleading names."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("swift", "swift_rlx", "torch"):
        (folder / f"{name}.py").write_text("raise RuntimeError('imported from the working directory')\n")
    return _doctor(folder, PYTHONPATH=str(rewards_folder))


@pytest.mark.slow
@pytest.mark.versions
def test_in_the_test_environment_rloo_can_run(healthy):
    sections, report = healthy
    assert report["can_run_rloo"], [
        c for checks in sections.values() for c in checks.values() if c["status"] != "OK"
    ]
    assert sections["hook"]["hook"]["data"]["found_at_start"]
    assert sections["hook"]["swift command"]["detail"] == str(BIN / "swift")
    assert sections["hook"]["plugin swift_rlx"]["status"] == "OK"
    assert sections["contract"]["contract"]["data"]["breaches"] == []
    assert "rloo" in sections["contract"]["rlhf_type"]["data"]["accepted"]
    assert "(tested)" in sections["packages"]["ms-swift"]["detail"]
    assert "gloo" in sections["devices"]["process groups"]["data"]["backends"]


@pytest.mark.slow
@pytest.mark.versions
def test_rewards_are_listed_with_their_origin_and_form(healthy):
    rewards = healthy[0]["rewards"]
    assert rewards["vowels"]["data"] == {
        "providers": ["pack-good 2.0"],
        "problem": None,
        "version": "2.0",
        "per_completion": True,
        "is_async": True,
        "scope": "group",
        "required_columns": ["language"],
    }
    assert "ms-swift" in rewards["format"]["detail"]
    assert "swift/rewards/orm.py" in rewards["format"]["detail"]
    assert rewards["accuracy"]["data"]["required_columns"] == ["solution"]
    assert "toolbench" not in rewards  # for `swift sample` only


@pytest.mark.slow
@pytest.mark.versions
def test_a_broken_reward_package_and_a_conflict_warn_and_stop_nothing(healthy):
    sections, report = healthy
    assert report["exit_code"] == 0
    assert sections["rewards"]["bad"]["status"] == "WARN"
    assert "a_package_that_nobody_has" in sections["rewards"]["bad"]["detail"]
    shared = sections["rewards"]["shared"]
    assert shared["status"] == "WARN"
    assert shared["data"]["providers"] == ["pack-good 2.0", "pack-rival 2.0"]
    assert "pack-good 2.0" in shared["detail"]
    assert "pack-rival 2.0" in shared["detail"]


@pytest.mark.slow
def test_with_the_plugins_switched_off_it_fails_and_says_why(tmp_path):
    sections, report = _doctor(tmp_path, SWIFT_PLUGINS="0")
    assert report["exit_code"] == 1
    assert sections["hook"]["hook"]["status"] == "FAIL"
    assert "SWIFT_PLUGINS=0" in sections["hook"]["hook"]["detail"]
    assert "unset SWIFT_PLUGINS" in sections["hook"]["hook"]["remedy"]
    assert sections["contract"]["rlhf_type"]["status"] == "FAIL"
    assert sections["contract"]["contract"]["status"] == "OK"


def test_without_ms_swift_it_says_so_and_exits_with_1(tmp_path):
    venv.create(tmp_path / "bare")
    result = subprocess.run(
        [
            tmp_path / "bare" / "bin" / "python",
            "-c",
            "import sys; from swift_rlx.cli.main import main; sys.exit(main(['doctor']))",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == ""
    assert "FAIL  ms-swift " in result.stdout
    assert "pip install 'ms-swift'" in result.stdout
    assert result.stdout.endswith(
        "cannot run here: ms-swift, torch, transformers, trl, peft, hook file, hook, contract failed\n"
    )
