"""docs/*/flags.md is true: refused flags are refused, the others accepted, and none is missing."""

import dataclasses
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from doc_pages import LANGUAGES, flags, parser, read, swift_commands, tables, without_downloads
from runs import FAST, arguments, command, train, weights

from swift_rlx.errors import RlxError
from swift_rlx.integration.algorithm_table import ALGORITHMS
from swift_rlx.integration.conflicts import REFUSALS, check_conflicts
from swift_rlx.integration.engine_options import FORWARDED, REPLACED
from swift_rlx.integration.fields import FIELD_DEFAULTS, FIELD_NAMES
from swift_rlx.integration.off_policy_fields import OffPolicyFields
from swift_rlx.integration.offline_fields import OfflineFields
from swift_rlx.integration.reward_fields import RewardFields
from swift_rlx.integration.rollout_fields import RolloutFields
from swift_rlx.integration.share_prompt_field import SharePromptField
from swift_rlx.integration.store_fields import StoreFields

STATUSES = {
    "en": {"same": "same", "differs": "differs", "no effect": "no effect"},
    "zh": {"相同": "same", "不同": "differs", "无作用": "no effect"},
}
HEADERS = {
    "en": {
        "ours": "what it does",
        "status": "note",
        "refused": "reason and way out",
        "by ms-swift": "message",
    },
    "zh": {"ours": "作用", "status": "说明", "refused": "原因与出路", "by ms-swift": "原因"},
}


def rows(language: str, table: str) -> list[list[str]]:
    """All rows of the tables whose last column has the title that belongs to `table`."""
    title = HEADERS[language][table]
    found = [each[1:] for each in tables(read(language, "flags")) if each[0][-1] == title]
    assert found
    return list(chain(*found))


def status_of(language: str) -> dict[str, str]:
    """flag -> same, differs or no effect."""
    found: dict[str, str] = {}
    for cell, status, _ in rows(language, "status"):
        for name in flags(cell):
            assert name not in found, f"{name} is in two rows"
            found[name] = STATUSES[language][status]
    return found


def refused_words(row: list[str]) -> list[str]:
    return row[0].strip("`").split()


def refused_types(row: list[str]) -> set[str]:
    return set(ALGORITHMS) if row[1] in ("all", "全部") else set(re.findall(r"`(\w+)`", row[1]))


@pytest.fixture(scope="module")
def parse() -> Callable[[list[str]], Any]:
    return parser()


@pytest.fixture
def quick_words(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> list[str]:
    """A run that is accepted for all three types."""
    options = arguments(tiny_model, write_rows(16), tmp_path / "out", reward_funcs=["format"])
    return command(options)[2:]


REFUSED = [(row[0], row, RlxError) for row in rows("en", "refused")]
REFUSED += [(row[0], row, (ValueError, AssertionError)) for row in rows("en", "by ms-swift")]


@pytest.mark.parametrize("rlhf_type", ALGORITHMS)
@pytest.mark.parametrize(("row", "error"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_row_marked_refused_is_refused_for_the_types_it_names_and_no_other(
    rlhf_type: str, row: list[str], error: Any, parse: Callable[[list[str]], Any], quick_words: list[str]
) -> None:
    words = [*quick_words, "--rlhf_type", rlhf_type, *refused_words(row)]
    if rlhf_type not in refused_types(row):
        assert parse(words).rlx_type == rlhf_type
        return
    with pytest.raises(error) as caught:
        parse(words)
    assert row[2].replace("`", "") in str(caught.value).replace("`", "")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_refusal_of_the_code_is_on_the_page(language: str) -> None:
    listed = {name for row in rows(language, "refused") for name in flags(row[0])}
    assert {refusal.argument for refusal in REFUSALS} | set(REPLACED) <= listed


def test_a_refusal_that_the_pipeline_makes_says_what_replaces_the_flag() -> None:
    reasons = {flags(row[0])[-1]: row[2] for row in rows("en", "refused") if "--async_rollout true" in row[0]}
    for flag, advice in REPLACED.items():
        assert reasons[flag] == f"{advice}; or use --async_rollout false"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_engine_flag_is_on_the_page_with_what_the_pipeline_makes_of_it(language: str) -> None:
    notes = {name: row[2] for row in rows(language, "status") for name in flags(row[0])}
    handed = {"en": "handed to the workers", "zh": "交给工作进程"}[language]
    assert {name for name, note in notes.items() if handed in note} == {*FORWARDED, "vllm_engine_kwargs"}
    assert all(argument == flag.removeprefix("vllm_") for flag, argument in FORWARDED.items())
    changed = {name for name, status in status_of(language).items() if status == "differs"}
    assert {*FORWARDED, *REPLACED, "vllm_engine_kwargs"} <= changed


def test_both_languages_list_the_same_flags_in_the_same_state() -> None:
    assert list(status_of("en").items()) == list(status_of("zh").items())
    for table in ("refused", "by ms-swift"):
        english, chinese = rows("en", table), rows("zh", table)
        assert [row[0] for row in english] == [row[0] for row in chinese]
        assert [refused_types(row) for row in english] == [refused_types(row) for row in chinese]
    assert [row[:4] for row in rows("en", "ours")] == [row[:4] for row in rows("zh", "ours")]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_flag_of_the_page_exists(language: str) -> None:
    from swift import RLHFArguments

    known = {field.name for field in dataclasses.fields(RLHFArguments)}
    assert set(flags(read(language, "flags"))) <= known


def test_every_argument_of_ms_swift_that_concerns_such_training_is_on_the_page() -> None:
    from swift import RLHFArguments
    from swift.arguments import rlhf_args

    own = [each for each in RLHFArguments.__mro__ if each.__name__ == "RLHFArguments"]
    concerned = {name for each in own for name in each.__annotations__} - {
        "rlx_type",
        "rlx_engine_options",
        "rlx_worker_devices",
        "rlx_offline",
    }
    for owner in ("GRPOArguments", "PPOArguments", "RewardModelArguments", "TeacherModelArguments"):
        concerned |= {field.name for field in dataclasses.fields(getattr(rlhf_args, owner))}
    listed = {name for table in HEADERS["en"] for row in rows("en", table) for name in flags(row[0])}
    assert concerned <= listed


def test_the_table_of_our_flags_has_each_with_the_default_of_each_type() -> None:
    table = {flags(row[0])[0]: row[1:4] for row in rows("en", "ours")}
    assert set(table) == {"rlhf_type", *FIELD_NAMES}
    types = ALGORITHMS.values()
    assert table["group_baseline"] == [each.baseline for each in types]
    assert table["reward_clip"] == [f"{each.reward_clip:g}" if each.reward_clip else "none" for each in types]
    assert table["reward_on_error"] == [FIELD_DEFAULTS["reward_on_error"]] * 3
    assert table["ema_baseline_decay"] == [
        str(FIELD_DEFAULTS["ema_baseline_decay"]) if "ema" in each.baselines else "-" for each in types
    ]
    groups = (RolloutFields, OffPolicyFields, RewardFields, SharePromptField, StoreFields, OfflineFields)
    for each in (field for group in groups for field in dataclasses.fields(group)):
        assert table[each.name] == [shown(each.default)] * 3, each.name


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if isinstance(default, bool) or default is None:
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_defaults_of_beta_are_those_of_the_types(language: str) -> None:
    [note] = [row[2] for row in rows(language, "status") if row[0] == "`--beta`"]
    numbers = [float(number) for number in re.findall(r"\d[\d.e-]*\d", note)]
    assert numbers[:3] == [each.beta for each in ALGORITHMS.values()]


def another_value(hint: Any, default: Any) -> Any:
    """A value of the type `hint` that is not `default`."""
    kind = get_args(hint)[0] if get_origin(hint) is Union else hint
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != default)
    if kind is bool:
        return not default
    if kind in (int, float):
        return kind(default + 1) if default else kind(1)
    return [another_value(get_args(kind)[0], None)] if get_origin(kind) is list else "x"


def changed(status: str, **overrides: Any) -> dict[str, Any]:
    """Another value for every flag with this status that no row says is refused for some value."""
    from swift import RLHFArguments

    hints = get_type_hints(RLHFArguments)
    defaults = {field.name: field.default for field in dataclasses.fields(RLHFArguments)}
    refusable = {name for row in rows("en", "refused") for name in flags(row[0])}
    names = [name for name, each in status_of("en").items() if each == status and name not in refusable]
    assert names
    return {name: another_value(hints[name], defaults[name]) for name in names} | overrides


@pytest.mark.parametrize("status", ["same", "differs", "no effect"])
@pytest.mark.parametrize("rlhf_type", ALGORITHMS)
def test_a_row_that_says_it_works_is_not_refused(rlhf_type: str, status: str) -> None:
    from swift import RLHFArguments

    given = FAST | changed(status) | {"reward_funcs": ["format"], "dataset": ["an/id"]}
    if status == "differs":
        given |= {"generation_batch_size": 16, "resume_from_checkpoint": None, "async_rollout": True}
    args = {field.name: field.default for field in dataclasses.fields(RLHFArguments)}
    args |= {name: [] for name, value in args.items() if value is dataclasses.MISSING} | given
    check_conflicts(SimpleNamespace(**args), ALGORITHMS[rlhf_type])


NO_EFFECT = {"teacher_deepspeed": "zero2", "lora_dropout": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("rlhf_type", ALGORITHMS)
def test_flags_without_effect_leave_the_weights_alone(
    rlhf_type: str, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    def variety(completions: list[str]) -> list[float]:
        return [float(len(set(text))) for text in completions]

    data, trained = write_rows(16), []
    for name, extra in (("plain", {}), ("with", changed("no effect", **NO_EFFECT)), ("seed", {"seed": 8})):
        options: dict[str, Any] = {"reward_funcs": [variety], "save_strategy": "steps", "save_steps": 2}
        train(tiny_model, data, tmp_path / name, rlhf_type=rlhf_type, **options | extra)
        trained.append(weights(tmp_path / name / "checkpoint-2"))
    plain, with_flags, other = (torch.cat([w[key].flatten() for key in sorted(w)]) for w in trained)
    assert torch.equal(plain, with_flags)
    assert not torch.equal(plain, other)


def test_both_languages_show_the_same_commands() -> None:
    assert swift_commands(read("en", "flags")) == swift_commands(read("zh", "flags"))


@pytest.mark.usefixtures("rollout_server")
@pytest.mark.parametrize("words", swift_commands(read("en", "flags")), ids=lambda words: words[-2])
def test_a_command_of_the_page_is_accepted(
    words: list[str],
    parse: Callable[[list[str]], Any],
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    args = parse(without_downloads(words, tiny_model, write_rows(16), tmp_path))
    assert args.rlx_type in ALGORITHMS


def test_each_group_of_flags_has_a_command() -> None:
    sections = re.split(r"^## ", read("en", "flags"), flags=re.MULTILINE)[1:]
    for section in sections:
        if "| status |" in section and not section.startswith("Arguments of other algorithms"):
            assert swift_commands(section), section.splitlines()[0]
