"""README.md and README_zh.md: the commands for a node of eight cards place ranks and workers as they say."""

import re
import shlex

import pytest
from doc_pages import DOCS, LANGUAGES, flags, tables

from swift_rlx.integration.devices import Machine, place_workers, training_devices

PAGES = {
    language: DOCS.parent / name
    for language, name in zip(LANGUAGES, ("README.md", "README_zh.md"), strict=True)
}
EIGHT = tuple("01234567")
PLACES = [
    (EIGHT[:4], EIGHT[4:]),
    (EIGHT, EIGHT),
    (EIGHT[:6], EIGHT[6:]),
    (EIGHT, ()),
]
"""For each command: where the ranks train, and where the workers generate."""


def text(language: str) -> str:
    return PAGES[language].read_text(encoding="utf-8")


def commands(language: str) -> list[str]:
    return [row[1].strip("`") for table in tables(text(language)) for row in table if "swift rlhf" in row[-1]]


def placed(command: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The cards of the ranks, and those of all workers."""
    given = dict(re.findall(r"--(\w+) (\S+)", command))
    ranks = re.match(r"NPROC_PER_NODE=(\d)", command)
    machine = Machine(EIGHT, int(ranks[1]) if ranks else 1)
    if given.get("async_rollout") == "false":
        return EIGHT[: machine.ranks], ()
    wanted = tuple(given.get("rollout_devices", "").split(",")) if "rollout_devices" in given else ()
    share = given.get("vllm_gpu_memory_utilization")
    workers = place_workers(
        machine,
        int(given.get("rollout_workers", 1)),
        wanted,
        int(given.get("vllm_tensor_parallel_size", 1)),
        float(share) if share else None,
    )
    return training_devices(machine, wanted, workers), tuple(card for worker in workers for card in worker)


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_command_for_eight_cards_uses_the_cards_that_its_row_says(language: str) -> None:
    assert [placed(command) for command in commands(language)] == PLACES


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_flag_of_a_command_exists(language: str) -> None:
    from swift import RLHFArguments

    assert set(flags(" ".join(commands(language)))) <= {*RLHFArguments.__dataclass_fields__}


def test_both_languages_show_the_same_commands_and_code() -> None:
    english, chinese = (
        [
            shlex.split(line, comments=True)
            for line in re.findall(r"^    (\S.*)$", text(language), re.MULTILINE)
        ]
        for language in LANGUAGES
    )
    differ = [pair for pair in zip(english, chinese, strict=True) if pair[0] != pair[1]]
    assert [pair[0][:2] for pair in differ] == [["git", "clone"]]
    assert commands("en") == commands("zh")
