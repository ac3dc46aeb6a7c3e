"""The changes to ms-swift's web page on classes of the same shape; `test_web_ui` has the real page."""

from types import ModuleType

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration import web_ui, web_ui_form

TASK = "pid:1/create:now/running:1s/cmd:swift rlhf --output_dir out --rlhf_type {}"


def _module(**content):
    module = ModuleType("invented")
    vars(module).update(content)
    return module


def _runtime(known=True):
    """A Runtime like that of 4.6.0, where a task is known if its command is among those of `cls.group`."""

    class Runtime:
        group = "llm_train"
        dpo_plot, grpo_plot, sft_plot = ["dpo"], ["grpo"], ["sft"]

        @classmethod
        def parse_info_from_cmdline(cls, task):
            if "/cmd:" not in task:
                raise ValueError(f"Cannot parse cmd line: {task}")
            words = task.split("--")[1:]
            return "1", dict(word.split()[:2] for word in words)

        @classmethod
        def get_plot(cls, task):
            if not task:
                return cls.sft_plot
            kind = cls.parse_info_from_cmdline(task)[1]["rlhf_type"]
            return {"dpo": cls.dpo_plot, "grpo": cls.grpo_plot}.get(kind)

        if known:

            @classmethod
            def _is_known_task(cls, task):
                command = "rlhf" if cls.group == "llm_rlhf" else "sft"
                return "pid:1/" in task and f"swift {command}" in task

    return Runtime


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "reinforce_pp_baseline", "reinforce++"])
def test_our_types_are_plotted_like_grpo(name):
    runtime = _runtime()
    assert runtime.get_plot(TASK.format(name)) is None
    web_ui.install(_module(Runtime=runtime))
    assert runtime.get_plot(TASK.format(name)) == ["grpo"]


def test_other_types_and_no_task_are_plotted_as_before():
    runtime = _runtime()
    web_ui.install(_module(Runtime=runtime))
    assert runtime.get_plot(TASK.format("dpo")) == ["dpo"]
    assert runtime.get_plot(None) == ["sft"]
    assert runtime.get_plot(TASK.format("gkd")) is None


def test_a_running_task_of_ours_is_known_and_the_checks_of_stock_still_hold():
    runtime = _runtime()
    assert not runtime._is_known_task(TASK.format("rloo"))
    web_ui.install(_module(Runtime=runtime))
    assert runtime._is_known_task(TASK.format("rloo"))
    assert not runtime._is_known_task(TASK.format("rloo").replace("pid:1/", "pid:2/"))
    assert not runtime._is_known_task(TASK.format("dpo"))
    assert not runtime._is_known_task("pid:1/no task at all")
    assert runtime.group == "llm_train"


def test_a_release_without_known_tasks_gets_none():
    runtime = _runtime(known=False)
    web_ui.install(_module(Runtime=runtime))
    assert not hasattr(runtime, "_is_known_task")
    assert runtime.get_plot(TASK.format("rloo")) == ["grpo"]


class UserError(Exception):
    """Stands for gradio.Error."""


@pytest.fixture
def form():
    """The tab and its fields, like those of ms-swift: unknown types lose their length, `train` may refuse."""

    class Fields:
        @staticmethod
        def update_beta(rlhf_type):
            return 0.1

    class Tab:
        @classmethod
        def filter_rlhf_args(cls, arguments):
            arguments.pop("rpo_alpha", None)
            arguments.pop("max_completion_length", None)

        @classmethod
        def train(cls, *values):
            if "refuse" in values:
                raise ConfigError("--beta -1 is refused: use 0")
            return cls, values

    class Gradio:
        Error = UserError
        update = dict

    web_ui_form.install(_module(LLMRLHF=Tab, RLHF=Fields, gr=Gradio))
    return Tab, Fields


def test_our_types_keep_their_arguments_and_lose_those_of_others(form):
    arguments = {"rlhf_type": "rloo", "max_completion_length": 6, "rpo_alpha": 1.0, "reward_model": "r"}
    form[0].filter_rlhf_args(arguments)
    assert arguments == {"rlhf_type": "rloo", "max_completion_length": 6, "reward_model": "r"}


def test_other_types_are_filtered_as_before(form):
    arguments = {"rlhf_type": "dpo", "max_completion_length": 6, "beta": 0.1}
    form[0].filter_rlhf_args(arguments)
    assert arguments == {"rlhf_type": "dpo", "beta": 0.1}
    form[0].filter_rlhf_args({})


def test_choosing_a_type_proposes_its_beta_in_steps_that_can_show_it(form):
    assert form[1].update_beta("rloo") == {"value": 0.05, "step": 0.05}
    assert form[1].update_beta("reinforce_pp_baseline") == {"value": 1e-4, "step": 1e-4}
    assert form[1].update_beta("dpo") == 0.1
    assert form[1].update_beta(None) == 0.1


def test_a_refusal_is_shown_in_the_page_with_its_sentence(form):
    with pytest.raises(UserError, match="--beta -1 is refused: use 0"):
        form[0].train("refuse")
    assert form[0].train(1, 2) == (form[0], (1, 2))
