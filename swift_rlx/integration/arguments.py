"""`RLHFArguments` with our algorithms and fields: what `swift rlhf`, YAML files and `rlhf_main(...)` parse into.

`install(module)` runs right after `swift.arguments.rlhf_args` was executed and before anybody imported a name from
it, so every part of ms-swift sees one class. Inside, `rlhf_type` is `grpo`, as ms-swift itself does for simpo: about
twenty places branch on that string. The user's choice is kept in `rlx_type` and written back into args.json.

No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.
"""

import ast
import contextlib
import difflib
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from types import ModuleType, TracebackType
from typing import Any, Literal, get_args, get_type_hints

from swift.utils import get_dist_setting

import swift_rlx
from swift_rlx.errors import ConfigError, PluginError, RlxError
from swift_rlx.integration.algorithm_table import ALGORITHMS, NAMES, resolve
from swift_rlx.integration.engine_options import (
    defaults_of,
    engine_options,
    refuse_options_of_servers,
    refuse_replaced,
)
from swift_rlx.integration.fields import FIELD_DEFAULTS, FIELD_NAMES, RLXFields, adopt
from swift_rlx.integration.flag_words import refuse_abbreviated, words_of_command
from swift_rlx.integration.launcher_watch import end_with_launcher, find_launcher
from swift_rlx.integration.model_path import refuse_folder_without_model, refuse_missing_folder
from swift_rlx.integration.offline_plan import settle_offline
from swift_rlx.integration.placement import settle_devices
from swift_rlx.integration.rollout_servers import refuse_unfit_servers
from swift_rlx.registry import one_line

TRACEBACK_VARIABLE = "SWIFT_RLX_TRACEBACK"


def install(module: ModuleType) -> None:
    """Replace `module.RLHFArguments` by the widened class, and let our errors print as one sentence."""
    module.RLHFArguments = widen(module.RLHFArguments)
    find_launcher()
    if sys.excepthook is not _print_one_sentence:
        _print_one_sentence.previous = sys.excepthook  # type: ignore[attr-defined]
        sys.excepthook = _print_one_sentence


def _print_one_sentence(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """A user's mistake is told in one sentence; SWIFT_RLX_TRACEBACK=1 brings the traceback back."""
    sentence = str(error) if isinstance(error, RlxError) else _unknown_flags(error, sys.argv)
    if sentence is not None and os.environ.get(TRACEBACK_VARIABLE) != "1":
        sys.stderr.write(f"swift-rlx: error: {sentence}\n")
    else:
        _print_one_sentence.previous(kind, error, traceback)  # type: ignore[attr-defined]


def _unknown_flags(error: BaseException, argv: list[str]) -> str | None:
    """What ms-swift's parser left over in a run of ours, with the flag that was probably meant; else None."""
    if not (
        isinstance(error, ValueError) and str(error).startswith("remaining_argv: ") and {*argv} & {*NAMES}
    ):
        return None
    words = [word for word in ast.literal_eval(str(error).partition(": ")[2]) if word.startswith("--")]
    from swift.arguments import RLHFArguments

    known = [f"--{each.name}" for each in fields(RLHFArguments)]
    close = [match for word in words for match in difflib.get_close_matches(word.split("=")[0], known, n=1)]
    hint = f"; did you mean {' and '.join(close)}?" if close else "; swift rlhf --help lists the flags"
    return f"{' '.join(words) or error} is no flag of swift rlhf{hint}"


def widen(base: type) -> type:
    """A subclass of ms-swift's RLHFArguments that knows our `rlhf_type`s and fields."""
    stock_types: tuple[str, ...] = get_args(get_type_hints(base)["rlhf_type"])
    choices = Literal[stock_types + NAMES]  # type: ignore[valid-type]

    @dataclass
    class RLHFArguments(RLXFields, base):  # type: ignore[valid-type, misc]
        rlhf_type: choices = "dpo"  # type: ignore[valid-type]
        rlx_type: str | None = field(default=None, init=False)
        rlx_engine_options: dict | None = field(default=None, init=False)
        rlx_worker_devices: list | None = field(default=None, init=False)
        rlx_offline: dict | None = field(default=None, init=False)

        def __post_init__(self) -> None:
            if self.rlhf_type in NAMES:
                _become_ours(self)
            else:
                _refuse_our_fields(self)
            super().__post_init__()

        def _import_external_plugins(self) -> None:
            if self.rlx_type is None:
                return super()._import_external_plugins()
            from swift_rlx.integration.reward_names import check_reward_names

            try:
                super()._import_external_plugins()
            except Exception as error:  # the user's own code
                raise PluginError(
                    f"--external_plugins {' '.join(self.external_plugins)} cannot be imported: {one_line(error)};"
                    " mend that file"
                ) from error
            check_reward_names(self.reward_funcs)

        def _check_teacher(self) -> None:
            # Stock refuses one completion a prompt for every `grpo`; REINFORCE++ is defined for it.
            if self.rlx_type is None:
                super()._check_teacher()
            else:
                self._teacher_use_disable_adapter = False  # what stock sets when there is no teacher

        def save_args(self, output_dir: str | None = None) -> None:
            with _as_the_user_wrote_it(self):
                super().save_args(output_dir)

    # ms-swift pickles arguments by name for spawned processes.
    RLHFArguments.__module__, RLHFArguments.__qualname__ = base.__module__, base.__qualname__
    RLHFArguments.__doc__ = base.__doc__
    return RLHFArguments


def _become_ours(args: Any) -> None:
    from swift_rlx.integration.conflicts import check_conflicts
    from swift_rlx.integration.run_log import show_in_log_of_run

    end_with_launcher()
    show_in_log_of_run()
    refuse_abbreviated(words_of_command(), [each.name for each in fields(args)], FIELD_NAMES)
    algorithm = resolve(args.rlhf_type)
    if args.rlhf_type == "reinforce_plus_plus":
        sys.stderr.write(
            "swift-rlx: --rlhf_type reinforce_plus_plus is REINFORCE++ (reinforce_pp) here; ms-swift's"
            " --advantage_estimator of that name subtracts the group mean and is nearer to reinforce_pp_baseline\n"
        )
    for flag in ("model", "ref_model"):
        if isinstance(model := getattr(args, flag), str):
            refuse_missing_folder(f"--{flag}", model)
            refuse_folder_without_model(f"--{flag}", model)
    defaults = defaults_of(type(args))
    algorithm = settle_offline(args, algorithm, defaults)
    _fill_generation_batch(args)
    check_conflicts(args, algorithm)
    adopt(args, algorithm)
    if args.async_rollout:
        refuse_replaced(args, defaults, algorithm.name)
    args.rlx_engine_options = engine_options(args, defaults)
    if args.async_rollout:
        if args.rollout_endpoints:
            refuse_options_of_servers(args.rlx_engine_options)
            if get_dist_setting()[0] <= 0:  # by the rank that will talk to them
                refuse_unfit_servers(args.rollout_endpoints)
        settle_devices(args)
    args.rlhf_type = "grpo"


def _fill_generation_batch(args: Any) -> None:
    """Left alone, a generation batch is made of whole groups: the shortest accumulation that gives them.

    ms-swift's defaults, one row per device and eight generations, would be refused on fewer than eight ranks.
    """
    sizes = (args.gradient_accumulation_steps, args.steps_per_generation, args.generation_batch_size)
    if all(size is None for size in sizes) and args.num_generations > 0:
        rows = args.per_device_train_batch_size * get_dist_setting()[2]
        args.gradient_accumulation_steps = args.num_generations // math.gcd(rows, args.num_generations)


def _refuse_our_fields(args: Any) -> None:
    changed = [name for name in FIELD_NAMES if getattr(args, name) != FIELD_DEFAULTS[name]]
    if changed:
        given = " ".join(f"--{name} {getattr(args, name)}" for name in changed)
        raise ConfigError(
            f"{given} belongs to swift-rlx and cannot be used with --rlhf_type {args.rlhf_type}; use one of"
            f" {', '.join(ALGORITHMS)}, or drop it"
        )


@contextlib.contextmanager
def _as_the_user_wrote_it(args: Any) -> Iterator[None]:
    """Within the context `args.__dict__` shows the user's rlhf_type; for stock types, nothing of ours."""
    before = dict(args.__dict__)
    for name in ("rlx_type", "rlx_engine_options", "rlx_worker_devices", "rlx_offline"):
        args.__dict__.pop(name, None)
    if before.get("rlx_type") is None:
        for name in FIELD_NAMES:
            del args.__dict__[name]
    else:
        args.__dict__.update(rlhf_type=before["rlx_type"], swift_rlx_version=swift_rlx.__version__)
    try:
        yield
    finally:
        args.__dict__.clear()
        args.__dict__.update(before)
