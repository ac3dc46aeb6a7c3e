"""The arguments of the pipeline: what each accepts, what is refused in one sentence, and that each one arrives."""

import copy
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import arguments

from swift_rlx.backends import BACKENDS, vllm_contract
from swift_rlx.errors import ConfigError
from swift_rlx.integration.rollout_fields import (
    BOUNDS,
    ONLY_ASYNC,
    RolloutFields,
    device_ids,
    refuse_missing_engine,
    resolve_rollout,
    visible_devices,
)

DEFAULTS = {each.name: each.default for each in fields(RolloutFields)}
OTHER: dict[str, Any] = {
    "rollout_backend": "transformers",
    "rollout_workers": 2,
    "rollout_devices": "4,5",
    "rollout_max_inflight": 8,
    "rollout_target_latency_s": 5.0,
    "train_order": "admission",
    "stale_tokens": "drop",
    "weight_update": "drain",
    "rollout_timeout_s": 60.0,
    "rollout_retries": 1,
    "rollout_start_timeout_s": 1800.0,
}
SERVERS: dict[str, Any] = {
    "rollout_endpoints": ["http://gpu7:8000", "http://gpu8:8000"],
    "rollout_shared_directory": "/shared",
    "rollout_max_inflight_tokens": 9000,
}
"""Fields that exclude some of the above."""


def resolved(**changes: Any) -> SimpleNamespace:
    values = SimpleNamespace(**(DEFAULTS | changes))
    resolve_rollout(values, DEFAULTS)
    return values


def test_the_pipeline_is_on_by_default() -> None:
    values = resolved()
    assert (values.async_rollout, values.max_staleness, values.rollout_backend) == (True, 2, "auto")


@pytest.mark.parametrize("changes", [{"max_staleness": 0}, {"async_rollout": False}], ids=["bound 0", "off"])
def test_a_bound_of_zero_and_no_pipeline_are_one_thing(changes: dict[str, Any]) -> None:
    assert vars(resolved(**changes)) == DEFAULTS | {"async_rollout": False, "max_staleness": 0}


def test_every_field_with_a_lower_bound_is_refused_below_it_and_taken_at_it() -> None:
    numbers = {each.name for each in fields(RolloutFields) if isinstance(each.default, (int, float))}
    assert {bound.name for bound in BOUNDS} >= numbers - {"async_rollout"}
    for bound in BOUNDS:
        below = bound.at_least - 1 if bound.at_least >= 1 or bound.at_least == 0 else -1.0
        beside = {"rollout_endpoints": SERVERS["rollout_endpoints"]} if bound.name in SERVERS else {}
        with pytest.raises(ConfigError, match=f"^--{bound.name} {below:g} is refused: {bound.advice}$"):
            resolved(**{bound.name: below} | beside)
        assert resolved(**{bound.name: bound.at_least} | beside)


def test_a_bound_that_bounds_nothing_is_refused() -> None:
    assert resolved(max_staleness=1000)
    with pytest.raises(ConfigError, match=r"^--max_staleness 100000 is refused: use 0, .*, to 1000$"):
        resolved(max_staleness=100_000)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rollout_timeout_s", "rollout_target_latency_s", "rollout_start_timeout_s"])
def test_a_time_that_is_no_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"--{name} {value} is refused: it is a time in seconds"):
        resolved(**{name: value})


@pytest.mark.parametrize("name", ONLY_ASYNC)
@pytest.mark.parametrize("off", [{"max_staleness": 0}, {"async_rollout": False}], ids=["bound 0", "off"])
def test_a_field_without_effect_is_refused(name: str, off: dict[str, Any]) -> None:
    value = (OTHER | SERVERS)[name]
    shown = " ".join(value) if isinstance(value, list) else value
    with pytest.raises(ConfigError, match=f"^--{name} {shown} has no effect without the asynchronous"):
        resolved(**{name: value} | off)
    beside = {"rollout_endpoints": SERVERS["rollout_endpoints"]} if name in SERVERS else {}
    assert getattr(resolved(**beside | {name: value}), name) == value


def test_no_field_is_left_out_of_these_tests() -> None:
    assert {*OTHER, *SERVERS} == set(ONLY_ASYNC) == set(DEFAULTS) - {"async_rollout", "max_staleness"}
    assert all(value != DEFAULTS[name] for name, value in (OTHER | SERVERS).items())


def test_a_bound_without_the_pipeline_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="--max_staleness 4 has no effect without the asynchronous pipeline"
    ):
        resolved(async_rollout=False, max_staleness=4)


@pytest.fixture
def installed_backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backend as a package offers it."""
    monkeypatch.setattr(BACKENDS, "_registered", dict(BACKENDS._registered))
    BACKENDS.register("their_engine", print, provider="their-package")
    return "their_engine"


@pytest.mark.parametrize(
    "name", ["auto", "transformers", "their_engine", "swift_rlx.testing.fake_engine:create"]
)
@pytest.mark.usefixtures("installed_backend")
def test_a_backend_that_is_installed_or_a_path_is_taken(name: str) -> None:
    assert resolved(rollout_backend=name).rollout_backend == name


@pytest.mark.parametrize("name", ["sglang", "servers", "Transformers"])
def test_an_unknown_backend_is_refused_with_those_that_are_installed(
    name: str, installed_backend: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(rollout_backend=name)
    there = ", ".join(("auto", "remote", *BACKENDS.names()))
    assert str(caught.value) == f"--rollout_backend {name} is not installed; use one of {there}"
    assert installed_backend in there


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_package.engine:create", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("json:create", "AttributeError: module 'json' has no attribute 'create'"),
        ("json:__name__", "TypeError: it is no function"),
    ],
)
def test_a_path_that_leads_to_no_function_is_refused(path: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(rollout_backend=path)
    assert str(caught.value) == (
        f"--rollout_backend {path} is refused: {reason}; give MODULE:FUNCTION that the workers can import, or the name"
        " of an installed backend"
    )


def test_what_the_workers_would_import_is_not_imported_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_mine.py").write_text("print('loading')\ndef create(spec): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolved(rollout_backend="engine_of_mine:create").rollout_backend == "engine_of_mine:create"
    assert "engine_of_mine" not in sys.modules


def test_an_engine_is_found_beside_a_plugin_file_and_not_in_the_folder_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the worker: it has the module path of the trainer, a script of another folder."""
    (tmp_path / "engine_of_hers.py").write_text("def create(spec): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    with pytest.raises(ConfigError, match="No module named 'engine_of_hers'; give MODULE:FUNCTION"):
        refuse_missing_engine("--rollout_backend", "engine_of_hers:create")
    refuse_missing_engine("--rollout_backend", "engine_of_hers:create", [str(tmp_path / "plugin.py")])


def test_vllm_is_refused_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_contract, "installed_version", lambda: "0.32.0")
    assert resolved(rollout_backend="vllm").rollout_backend == "vllm"
    monkeypatch.setattr(vllm_contract, "installed_version", lambda: None)
    with pytest.raises(
        ConfigError,
        match=r"--rollout_backend vllm is refused: vLLM is not installed; pip install 'swift-rlx\[vllm\]', or use"
        r" --rollout_backend transformers$",
    ):
        resolved(rollout_backend="vllm")


@pytest.mark.parametrize(
    ("text", "ids"), [(None, ()), ("4", ("4",)), ("4,5,6", ("4", "5", "6")), ("6, 4", ("6", "4"))]
)
def test_device_ids_are_read_in_their_order(text: str | None, ids: tuple[str, ...]) -> None:
    assert device_ids(text) == ids


@pytest.mark.parametrize("text", ["4,", "a", "4,4", "-1", "cuda:0", "4 5", ","])
def test_what_is_no_list_of_different_numbers_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--rollout_devices .* is refused: give different numbers, such as 4,5"
    ):
        resolved(rollout_devices=text)


@pytest.mark.parametrize(("text", "ids"), [(None, None), ("", ()), ("0,1", ("0", "1")), ("3, 2", ("3", "2"))])
def test_visible_devices_are_those_of_the_environment(
    text: str | None, ids: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert visible_devices() == ids


# --- servers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "remote"])
def test_endpoints_are_the_remote_backend(backend: str) -> None:
    values = resolved(rollout_endpoints=["http://gpu7:8000"], rollout_backend=backend)
    assert (values.rollout_backend, values.rollout_endpoints) == ("remote", ["http://gpu7:8000"])
    assert resolved(**vars(values)).rollout_backend == "remote"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout_backend": "remote"}, "--rollout_backend remote is refused without --rollout_endpoints"),
        ({"rollout_endpoints": [], "rollout_backend": "remote"}, "is refused without --rollout_endpoints"),
        ({"rollout_endpoints": ["gpu7:8000"]}, "'gpu7:8000' is refused: give the address of a server"),
        (
            {"rollout_endpoints": ["http://a"], "rollout_backend": "vllm"},
            "vllm contradicts --rollout_endpoints",
        ),
        (
            {"rollout_endpoints": ["http://a"], "rollout_workers": 2},
            "--rollout_workers 2 has no effect with --roll",
        ),
        (
            {"rollout_endpoints": ["http://a"], "rollout_devices": "4,5"},
            "--rollout_devices 4,5 has no effect with",
        ),
        (
            {"rollout_shared_directory": "/x"},
            "--rollout_shared_directory /x has no effect without --rollout_endpo",
        ),
        (
            {"rollout_max_inflight_tokens": 7},
            "--rollout_max_inflight_tokens 7 has no effect without --rollout_end",
        ),
    ],
)
def test_what_contradicts_servers_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolved(**changes)


# --- as `swift rlhf` reads them --------------------------------------------------------------------------------------


@pytest.fixture
def build(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """RLHFArguments of a quick run on the pipeline, with changes."""

    def make(**changes: Any) -> Any:
        from swift import RLHFArguments

        options = {
            "rlhf_type": "rloo",
            "reward_funcs": ["format"],
            "report_to": ["none"],
            "async_rollout": True,
        }
        return RLHFArguments(**arguments(tiny_model, write_rows(16), tmp_path / "out", **options | changes))

    return make


@pytest.mark.usefixtures("eight_cards")
def test_each_field_reaches_the_training_configuration(build: Callable[..., Any]) -> None:
    changes = {**OTHER, "max_staleness": 4}
    config = build(**changes).training_args
    assert {name: getattr(config, name) for name in changes} == changes
    assert config.async_rollout is True


def test_the_fields_of_servers_reach_the_training_configuration(build: Callable[..., Any]) -> None:
    args = build(**SERVERS)
    config = args.training_args
    assert {name: getattr(config, name) for name in SERVERS} == SERVERS
    assert (config.rollout_backend, args.rlx_worker_devices) == ("remote", [])


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (
            {"vllm_max_num_seqs": 8},
            "--vllm_max_num_seqs 8 has no effect on the servers .*: give --max-num-seqs 8 to",
        ),
        ({"vllm_engine_kwargs": '{"block_size": 16}'}, "--vllm_block_size 16 has no effect on the servers"),
        ({"vllm_server_host": ["gpu7"]}, "name running servers with --rollout_endpoints"),
    ],
)
def test_an_engine_flag_has_no_meaning_for_a_running_server(
    build: Callable[..., Any], flag: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build(rollout_endpoints=["http://gpu7:8000"], **flag)


def test_a_bound_of_zero_on_the_command_line_is_no_pipeline(build: Callable[..., Any]) -> None:
    config = build(max_staleness=0).training_args
    assert (config.async_rollout, config.max_staleness) == (False, 0)


@pytest.mark.usefixtures("eight_cards")
def test_each_setting_of_the_scheduler_follows_its_field(build: Callable[..., Any]) -> None:
    from swift_rlx.backends import WeightUpdate
    from swift_rlx.scheduler import StaleTokens, TrainOrder
    from swift_rlx.trainers.pipeline_plan import rollout_config
    from swift_rlx.types import SamplingParams

    args = build(max_staleness=4, **OTHER).training_args

    def config(**changes: Any) -> Any:
        given = copy.copy(args)
        vars(given).update(changes)
        trainer = SimpleNamespace(
            args=given,
            num_iterations=1,
            num_generations=4,
            min_group_size=2,
            shuffle_dataset=True,
            train_dataset=range(16),
            state=SimpleNamespace(global_step=0, max_steps=2),
        )
        return rollout_config(trainer, SamplingParams())

    found = config()
    assert (found.max_staleness, found.max_inflight) == (4, 8)
    assert config(rollout_max_inflight=None).max_inflight is None, "adapted"
    assert config(rollout_target_latency_s=5.0).target_latency_s == 5.0
    assert config(rollout_max_inflight=None, rlx_engine_options={"max_num_seqs": 6}).max_inflight == 6
    assert (found.train_order, found.stale_tokens) == (TrainOrder.ADMISSION, StaleTokens.DROP)
    assert (found.weight_update, found.request_timeout_s, found.retries) == (WeightUpdate.DRAIN, 60.0, 1)
    assert config(weight_update="auto").weight_update is None
