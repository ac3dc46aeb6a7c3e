"""docs/*/pipeline.md is true: its flags have the defaults of the code, its commands are accepted, its Python runs."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doc_pages import LANGUAGES, blocks, flags, parser, read, swift_commands, tables, without_downloads

from swift_rlx.integration.off_policy_fields import OffPolicyFields
from swift_rlx.integration.rollout_fields import RolloutFields
from swift_rlx.testing import run_virtual

FIELDS = (*dataclasses.fields(RolloutFields), *dataclasses.fields(OffPolicyFields))


def snippet_with(word: str) -> str:
    [snippet] = [each for each in blocks(read("en", "pipeline"), "python") if word in each]
    return snippet


def shown(default: Any) -> str:
    if isinstance(default, bool) or default is None:
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_flags_has_each_with_its_default_and_when_to_change_it(language: str) -> None:
    [table] = [each for each in tables(read(language, "pipeline")) if each[1][0] == "`--async_rollout`"]
    assert {flags(row[0])[0]: row[1] for row in table[1:]} == {
        each.name: shown(each.default) for each in FIELDS
    }
    assert all(row[2] for row in table[1:])


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_flag_of_the_page_exists(language: str) -> None:
    from swift import RLHFArguments

    text = re.sub(r"^    .*$", "", read(language, "pipeline"), flags=re.MULTILINE)  # pip has flags too
    known = {field.name for field in dataclasses.fields(RLHFArguments)} | {"shm"}  # of docker: --shm-size
    assert set(flags(text)) <= known


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_mode_of_publishing_and_every_backend_is_on_the_page(language: str) -> None:
    from swift_rlx.backends import BACKENDS, WeightUpdate

    firsts = {row[0].strip("`") for table in tables(read(language, "pipeline")) for row in table}
    assert {mode.value for mode in WeightUpdate} <= firsts
    assert set(BACKENDS.names()) <= firsts


def test_both_languages_show_the_same() -> None:
    english, chinese = (read(language, "pipeline") for language in LANGUAGES)
    assert blocks(english, "python") == blocks(chinese, "python")
    assert blocks(english, "bash") == blocks(chinese, "bash")
    assert re.findall(r"^    \S.*$", re.sub(r"```.*?```", "", english, flags=re.DOTALL), re.MULTILINE) == (
        re.findall(r"^    \S.*$", re.sub(r"```.*?```", "", chinese, flags=re.DOTALL), re.MULTILINE)
    )
    assert sorted(set(flags(english))) == sorted(set(flags(chinese)))
    assert [len(table) for table in tables(english)] == [len(table) for table in tables(chinese)]
    assert re.findall(r"^##+ ", english, re.MULTILINE) == re.findall(r"^##+ ", chinese, re.MULTILINE)


@pytest.mark.usefixtures("eight_cards")
@pytest.mark.parametrize("words", swift_commands(read("en", "pipeline")), ids=lambda words: words[-2])
def test_a_command_of_the_page_is_accepted(
    words: list[str], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    args = parser()(without_downloads(words, tiny_model, write_rows(16), tmp_path))
    assert args.training_args.async_rollout is True


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_limits_that_the_page_names_are_those_of_the_code(language: str) -> None:
    from swift_rlx.backends import EngineSpec
    from swift_rlx.backends.vllm_contract import SUPPORTED
    from swift_rlx.cluster.launch import Launch
    from swift_rlx.cluster.messages import REPORT_S
    from swift_rlx.cluster.process_state import STOPPED_S
    from swift_rlx.cluster.worker_process import LOST_S, MAX_STARTS_IN_VAIN
    from swift_rlx.integration.devices import SHARED_MEMORY_SHARE
    from swift_rlx.scheduler import RolloutConfig
    from swift_rlx.scheduler.drops import LEAST_IN_A_ROW
    from swift_rlx.trainers.pipeline_plan import STALL_S, STALL_SHARE

    text = read(language, "pipeline")
    assert f"--vllm_gpu_memory_utilization {SHARED_MEMORY_SHARE}" in text
    assert (MAX_STARTS_IN_VAIN, LOST_S) == (5, 600.0)
    config, launch = RolloutConfig(batch_groups=1), Launch("w", EngineSpec("w", "m"), Path("w.log"))
    assert (STALL_S, STALL_SHARE, launch.stall_limit_s) == (45.0, 0.15, config.first_token_limit_s)
    for number in (
        REPORT_S,
        STOPPED_S,
        launch.silence_limit_s,
        STALL_S,
        config.outage_limit_s,
        LEAST_IN_A_ROW,
    ):
        assert re.search(rf"(?<![\d.]){number:g} ", text), number
    assert SUPPORTED == ((0, 32), (0, 33))
    assert "vLLM 0.32" in text


def test_the_scheduler_of_the_page_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.run", run_virtual)
    exec(compile(snippet_with("RolloutScheduler"), "docs/en/pipeline.md", "exec"), {"__name__": "page"})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(step) for step, *_ in lines] == [step for step in range(5) for _ in range(4)]
    assert len({prompt for _, prompt, *_ in lines}) == 20, "every prompt once"


def test_the_test_of_an_engine_on_the_page_passes(tmp_path: Path) -> None:
    page: dict[str, Any] = {"__name__": "page_on_engines"}
    exec(compile(snippet_with("check_engine"), "docs/en/pipeline.md", "exec"), page)
    page["test_my_engine_keeps_the_rules"](tmp_path)


def test_the_settings_of_the_page_are_taken_before_training_and_refused_after_it_began(
    tmp_path: Path,
) -> None:
    from swift_rlx import RLXConfig
    from swift_rlx.errors import ConfigError
    from swift_rlx.trainers.async_rollout import AsyncRolloutMixin

    trainer: Any = object.__new__(AsyncRolloutMixin)
    trainer.args = RLXConfig(
        output_dir=str(tmp_path),
        num_generations=4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        async_rollout=False,
    )
    trainer.args.settle("rloo")
    assert trainer.args.max_staleness == 0
    page: dict[str, Any] = {"__name__": "page_on_settings"}
    exec(compile(snippet_with("def settings"), "docs/en/pipeline.md", "exec"), page)
    page["settings"](trainer)
    args = trainer.args
    assert (args.async_rollout, args.max_staleness) == (True, 1)
    assert (args.rollout_backend, args.rollout_workers, args.rollout_max_inflight) == ("transformers", 2, 16)
    trainer._link = object()
    with pytest.raises(ConfigError, match=r"called after training had begun; call it before train\(\)"):
        page["settings"](trainer)
