"""The example container file: each path, package, variable and command in it is real, and the command serves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from swift_rlx.cli.main import build_parser

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "reward_service"
NEVER_INSTALLED = (
    "swift",
    "transformers",
    "peft",
    "trl",
    "datasets",
    "pandas",
    "scipy",
    "openai",
    "modelscope",
)
TOKEN = "a-token-of-the-test"
PORT = "8101"


def instructions() -> list[tuple[str, str]]:
    """Name and rest of each instruction, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (EXAMPLE / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line.strip()]


def of(name: str) -> list[str]:
    return [rest for one, rest in instructions() if one == name]


def listed(text: str) -> list[str]:
    """The words of an instruction in exec form."""
    words: list[str] = json.loads(text[text.index("[") :])
    return words


def project(folder: str = "") -> dict:
    return tomllib.loads((REPOSITORY / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def installed() -> tuple[list[str], list[str]]:
    """Folders of the repository, and packages of the index, that its pip commands install."""
    words = [word for run in of("RUN") for word in shlex.split(run) if "pip" in run]
    folders = [word for word in words if word == "/src" or word.startswith("/src/")]
    plain = r"[a-z][a-z0-9_-]*"
    names = [word for word in words if re.fullmatch(plain, word) and word not in ("pip", "install")]
    return [folder.removeprefix("/src").strip("/") for folder in folders], names


def test_the_folders_that_it_installs_are_distributions() -> None:
    assert of("COPY") == [". /src"], "the whole repository"
    folders, _ = installed()
    assert folders[0] == ""
    assert all(project(folder)["name"].startswith("swift-rlx") for folder in folders)


def test_it_installs_what_the_service_needs_besides_ms_swift() -> None:
    _, names = installed()
    needed = [*project()["dependencies"], *project()["optional-dependencies"]["serve"]]
    plain = {re.split(r"[<>=\[]", one)[0] for one in needed} - {"ms-swift"}
    assert plain | {"torch", "numpy"} == set(names)


def test_its_command_is_one_of_ours_and_serves_rewards_that_it_installs() -> None:
    [command] = map(listed, of("CMD"))
    assert command[0] in project()["scripts"]
    options = build_parser().parse_args(command[1:])
    offered = [
        name for folder in installed()[0][1:] for name in project(folder)["entry-points"]["swift_rlx.rewards"]
    ]
    assert sorted(options.reward) == sorted(offered)
    assert (options.host, str(options.port)) == ("0.0.0.0", PORT)


def test_what_git_ignores_stays_out_of_the_image() -> None:
    def patterns(path: Path) -> set[str]:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {line.removeprefix("**/").strip("/") for line in lines if line and not line.startswith("#")}

    assert patterns(EXAMPLE / "Dockerfile.dockerignore") == patterns(REPOSITORY / ".gitignore") | {".git"}


def test_it_serves_as_a_user_that_it_makes_and_whose_home_it_works_in() -> None:
    names = [name for name, _ in instructions()]
    [user] = of("USER")
    [made] = [at for at, (name, rest) in enumerate(instructions()) if name == "RUN" and "useradd" in rest]
    assert shlex.split(instructions()[made][1])[-1] == user != "root"
    last_install = max(
        at for at, (name, rest) in enumerate(instructions()) if name == "RUN" and "pip" in rest
    )
    assert max(last_install, made) < names.index("USER") < names.index("CMD"), "packages are root's"
    assert of("WORKDIR") == [f"/home/{user}"]


def test_port_health_and_token_are_those_of_the_service() -> None:
    from swift_rlx.reward_service import tenants

    [check] = of("HEALTHCHECK")
    program = listed(check)[-1]
    compile(program, "HEALTHCHECK", "exec")
    assert of("EXPOSE") == [PORT]
    assert f"http://127.0.0.1:{PORT}/health" in program
    assert '"/health"' in (REPOSITORY / "swift_rlx/reward_service/app.py").read_text(encoding="utf-8")
    [variable] = [line.partition("=")[0] for line in of("ENV")]
    assert variable in Path(tenants.__file__).read_text(encoding="utf-8")


def test_the_commands_that_its_comments_and_its_readme_name_are_real() -> None:
    comments = (EXAMPLE / "Dockerfile").read_text(encoding="utf-8")
    [path] = re.findall(r"docker build -f (\S+)", comments)
    assert (REPOSITORY / path).samefile(EXAMPLE / "Dockerfile")
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    [words] = re.findall(r"^ +swift-rlx (.+) &$", readme, flags=re.MULTILINE)
    build_parser().parse_args(words.split())
    for folder in re.findall(r"\./(plugins/\w+)", readme):
        project(folder)
    for path in re.findall(r"`?((?:examples|docs)/[\w./]+\w)", readme):
        assert (REPOSITORY / path).exists(), path


# --- the command in what the image has ------------------------------------------------------------------------------

REFUSE = f"""
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {NEVER_INSTALLED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: the image has none", name=name)

sys.meta_path.insert(0, Refused())
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder with the plugins that it installs, and without what it does not."""
    for folder in installed()[0][1:]:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
        subprocess.run(build, cwd=REPOSITORY / folder, check=True, capture_output=True)
    wheels = map(str, (tmp_path / "dist").glob("*.whl"))
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target"]
    subprocess.run([*install, str(tmp_path / "site"), *wheels], check=True, capture_output=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(REFUSE, encoding="utf-8")
    return tmp_path / "site"


@pytest.mark.slow
def test_its_command_serves_without_ms_swift(image: Path) -> None:
    from swift_rlx.backends.remote_endpoint import ApiKey
    from swift_rlx.reward_service import Row, ServiceReward, parse_address

    [command] = map(listed, of("CMD"))
    words = [{PORT: "0", "0.0.0.0": "127.0.0.1"}.get(word, word) for word in command[1:]]
    paths = [str(image), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "SWIFT_RLX_REWARD_TOKEN": TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-c", "from swift_rlx.cli.main import main; raise SystemExit(main())", *words],
        env=environment,
        cwd=image,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        addresses = [process.stdout.readline().split()[-1] for _ in ("comment_bonus", "format_length")]
        assert all(address.endswith("@v3") for address in addresses), addresses

        async def scored(address: str) -> list[float | None]:
            return await ServiceReward(parse_address(address), ApiKey(TOKEN)).score(
                [Row("x = 1  # one\ny = 2")]
            )

        assert is_healthy(addresses[0]), "without a token"
        found = [asyncio.run(asyncio.wait_for(scored(address), 100))[0] for address in addresses]
        assert found[0] == 0.5
        assert found[1] is not None
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert not is_healthy(addresses[0])


def is_healthy(address: str) -> bool:
    """Whether the health check of the file says so, asked at the port of this address."""
    [check] = of("HEALTHCHECK")
    program = listed(check)[-1].replace(PORT, address.split("/")[2].rpartition(":")[2])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    return done.returncode == 0
