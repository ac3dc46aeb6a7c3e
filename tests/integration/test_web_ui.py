"""ms-swift's real web page: our types are offered, submitted, followed and plotted."""

import contextlib
import json
import os
import time

import psutil
import pytest
from descendants import descendants
from web_page import serve

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TYPES = ["rloo", "reinforce_pp", "reinforce_pp_baseline"]
# Options without a field of their own; enough steps that the run outlives the test.
MORE = {
    "reward_funcs": ["format"],
    "use_cpu": True,
    "fp16": False,
    "check_model": False,
    "max_steps": 2000,
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "gradient_checkpointing": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "save_strategy": "no",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("page")) as page:
        yield page


@pytest.fixture
def form(tiny_model, write_rows):
    return {
        "model": str(tiny_model),
        "model_type": "llama",
        "template": "chatml",
        "dataset": [str(write_rows())],
        "torch_dtype": "float32",
        "rlhf_type": "rloo",
        "max_completion_length": "6",
        "gradient_accumulation_steps": 1,
        "logging_steps": "1",
        "beta": 0.05,
    }


def test_our_types_are_offered_beside_those_of_stock(page):
    assert {*TYPES, "dpo", "grpo"} <= set(page.choices("rlhf_type"))


@pytest.mark.parametrize(("rlhf_type", "beta"), list(zip(TYPES, [0.05, 0.01, 1e-4], strict=True)))
def test_choosing_a_type_proposes_its_beta(page, rlhf_type, beta):
    assert page.propose_beta(rlhf_type)["value"] == beta


def test_a_form_that_is_refused_gets_the_sentence(page, form):
    with pytest.raises(Exception, match="--rlhf_type rloo has no reward to learn from"):
        page.submit(**form, more_params=json.dumps(MORE | {"reward_funcs": None}))


def test_a_run_is_submitted_followed_and_plotted_while_it_runs(page, form):
    command, folder, task = page.submit(**form, more_params=json.dumps(MORE))
    try:
        assert "--rlhf_type 'rloo'" in command
        assert "--max_completion_length '6'" in command
        labels = page.show_status(task)
        assert {"train/reward", "train/kl", "train/loss"} <= set(labels)
        assert _follow_until_plotted(page, folder, task)
        with open(os.path.join(os.path.dirname(folder), "args.json"), encoding="utf-8") as file:
            saved = json.load(file)
        assert (saved["rlhf_type"], saved["beta"]) == ("rloo", 0.05)
    finally:
        _end(int(task.split("/")[0].removeprefix("pid:")))


def _follow_until_plotted(page, folder, task):
    """Click "Show running status" until every plot is there (at first there is no log to follow); the log."""
    deadline = time.monotonic() + 240
    log = ""
    while time.monotonic() < deadline:
        for log, plots in page.follow(folder, task):
            if all(plots):
                return log
            if time.monotonic() > deadline:
                break
        time.sleep(1)
    with open(os.path.join(folder, "run.log"), encoding="utf-8") as file:
        pytest.fail(f"no plots; the page shows {log[-500:]!r}; the run's log:\n{file.read()[-3000:]}")


def _end(pid):
    """Kill the `swift` command and the interpreter that it started, if they are still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        command = psutil.Process(pid)
        for process in [*descendants(pid), command]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
