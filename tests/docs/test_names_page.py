"""docs/*/names.md is true: no name of the articles is left out, and what it says exists runs."""

import asyncio
import dataclasses
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_pages import LANGUAGES, blocks, flags, parser, read, swift_commands, tables, without_downloads
from runs import FAST

from swift_rlx.integration.algorithm_table import ALGORITHMS
from swift_rlx.rewards import REWARDS, resolve_reward
from swift_rlx.testing import fake_distribution

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
ABSENT = {"en": "not in this release", "zh": "本版本没有"}
# What the articles' code, tables and diagram name, as they spell it.
NAMES = """
RLTrainer | rl_type | reward_model_path | offline_ratio | load_dataset | `output_dir` | `learning_rate`
`per_device_train_batch_size` | `gradient_accumulation_steps` | `num_train_epochs` | `logging_steps` | NFS
`tokenizer=` | `train_dataset=` | trainer.train() | Offline Optimization
ReinforcePlusPlusTrainer | register_reward_plugin | comment_bonus | comment_reward | human_rm_v2 | prompt_dataset
reward_plugins | value_network_ema_decay | use_importance_sampling | max_response_length | A = r - V(s)
enable_async_inference | backend="vllm" | num_workers | batch_size_per_worker | gpu_memory_utilization | SGLang
Training Loop | Async Inference Scheduler | vLLM/SGLang Worker | Parameter Server | Scoring Service | FSDP
submit_time | start_time | finish_time | Ulysses | Ring-Attention
Offline Output | SamplingParams | temperature=0.5 | top_p=0.9 | AsyncLLMEngine | BERT | GPT-4 | normalize_scores
P(A>B) = σ(θ_A - θ_B) | Bradley-Terry | LogisticRegression | `all_pairs` | `pairs` | `labels` | A = θ - mean(θ)
torch.sum(w * log_probs) | KL_divergence | GAE | BCQConstraint | dataset_stats | js_div | cql_loss | `α`
awac_weight | find_optimal_lambda | `Pipeline` | generate_pool | score_pool | run_epoch | update_model
DiskCache | np.memmap | add_batch | query_id | `ray:` | `resources` | `generate` | `score` | autoscale | `min` | `max`
target_utilization | gradient_penalty | entropy(token_distribution) | n-gram | running_adv | batch_adv
1 / (frequency + 1e-3)
"""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", re.split(r" \| |\n", NAMES.strip()))
def test_a_name_of_the_articles_is_on_the_page(name: str, language: str) -> None:
    meanings_of_rloo, *others = tables(read(language, "names"))
    cells = [row[1] for row in meanings_of_rloo] + [row[0] for table in others for row in table]
    assert any(name in cell for cell in cells)


def meaning(language: str) -> list[tuple[list[str], bool]]:
    """For each row: the names in it, and whether it says that something is absent."""
    rows = [row for table in tables(read(language, "names"))[1:] for row in table[1:]]
    names = [sorted(re.findall(r"`([^`]+)`", " ".join(row))) for row in rows]
    return [(found, ABSENT[language] in row[1]) for found, row in zip(names, rows, strict=True)]


def test_both_languages_say_the_same_of_each_name() -> None:
    assert meaning("en") == meaning("zh")
    assert swift_commands(read("en", "names")) == swift_commands(read("zh", "names"))
    assert blocks(read("en", "names"), "python") == blocks(read("zh", "names"), "python")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_row_says_where_the_thing_is_or_that_it_is_absent(language: str) -> None:
    for table in tables(read(language, "names"))[1:]:
        for article, here in table[1:]:
            assert article, here
            assert here, article


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_page_names_exists(language: str) -> None:
    from swift import RLHFArguments

    text = read(language, "names")
    known = {field.name for field in dataclasses.fields(RLHFArguments)}
    known |= {"port", "temperatures"}  # of swift rollout, and of swift-rlx store generate
    assert set(flags(text)) <= known
    for path in re.findall(r"`(swift_rlx(?:\.\w+)+)`", text):
        module, name = path.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), name), path
    for folder in re.findall(r"`(plugins/\w+)`", text):
        assert (PLUGINS.parent / folder / "pyproject.toml").is_file()


@pytest.fixture
def swift_that_notes(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, write_rows: Any, tmp_path: Path
) -> list[Any]:
    """`rlhf_main` of a snippet does not train; its arguments are built, with a tiny model and local data."""
    import swift

    stock, noted = swift.RLHFArguments, []

    def local(**given: Any) -> Any:
        assert {"model", "dataset", "output_dir"} <= given.keys()
        here = {"model": str(tiny_model), "dataset": [str(write_rows(16))], "output_dir": str(tmp_path)}
        quick = {
            name: FAST[name] for name in ("model_type", "template", "torch_dtype", "check_model", "use_cpu")
        }
        return stock(**given | here | quick)

    monkeypatch.setattr(swift, "RLHFArguments", local)
    monkeypatch.setattr(swift, "rlhf_main", noted.append)
    return noted


def test_the_python_of_the_page_runs(swift_that_notes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARDS, "_registered", {})
    page = types.ModuleType("page_on_names")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    for snippet in blocks(read("en", "names"), "python"):
        exec(compile(snippet, "docs/en/names.md", "exec"), page.__dict__)
    assert [args.rlx_type for args in swift_that_notes] == ["rloo"]
    assert set(REWARDS._registered) == {"comment_density", "polite", "judge"}
    assert resolve_reward("comment_density").build()("# why\nx = 1") == 0.5
    assert resolve_reward("polite").build()("my password is") == -1.0


def snippet_with(word: str) -> str:
    [snippet] = [each for each in blocks(read("en", "names"), "python") if word in each]
    return snippet


@pytest.mark.slow
def test_the_trainer_that_the_page_builds_in_python_trains(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import swift

    import swift_rlx

    small: dict[str, Any] = {
        "max_steps": 1,
        "max_completion_length": 6,
        "check_model": False,
        "async_rollout": False,
    }
    on_cpu: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": []}
    config, load, template = swift_rlx.RLXConfig, swift.get_model_processor, swift.get_template
    monkeypatch.setattr(swift_rlx, "RLXConfig", partial(config, **small, **on_cpu), raising=False)
    monkeypatch.setattr(
        swift, "get_model_processor", partial(load, model_type="llama", torch_dtype=torch.float32)
    )
    monkeypatch.setattr(swift, "get_template", partial(template, template_type="chatml"))
    monkeypatch.chdir(tmp_path)
    page: dict[str, Any] = {"__name__": "page_on_trainers"}
    exec(snippet_with("RLOOTrainer"), page)
    page["train"](str(tiny_model), str(write_rows(16)))
    assert (tmp_path / "output_rloo" / "checkpoint-1").is_dir()


def test_the_pipeline_of_the_page_has_four_workers(tmp_path: Path) -> None:
    from swift_rlx import RLXConfig
    from swift_rlx.trainers.async_rollout import AsyncRolloutMixin

    trainer = object.__new__(AsyncRolloutMixin)
    trainer.args = RLXConfig(
        output_dir=str(tmp_path), num_generations=4, use_cpu=True, bf16=False, report_to=[]
    )
    trainer.args.settle("rloo")
    page: dict[str, Any] = {"__name__": "page_on_workers"}
    exec(snippet_with("enable_async_rollout"), page)
    page["use_four_workers"](trainer)
    args = trainer.args
    assert (args.rollout_backend, args.rollout_workers, args.rollout_max_inflight) == ("vllm", 4, 8)
    assert args.rlx_engine_options == {"gpu_memory_utilization": 0.8}


def test_the_judge_of_the_page_asks_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiohttp import web

    async def score(request: web.Request) -> web.Response:
        text = (await request.json())["text"]
        return web.json_response({"score": 8}) if text == "good" else web.Response(status=503)

    async def ask() -> list[float | None]:
        app = web.Application()
        app.router.add_post("/score", score)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            page: dict[str, Any] = {"__name__": "page_on_judges"}
            exec(snippet_with("aiohttp").replace(":8001", f":{runner.addresses[0][1]}"), page)
            return [await page["judge"]("good"), await page["judge"]("down")]
        finally:
            await runner.cleanup()

    monkeypatch.setattr(REWARDS, "_registered", {})
    assert asyncio.run(ask()) == [0.8, None]


@pytest.fixture
def rewards_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`comment_bonus` as if installed; the folder has the page's my_rewards.py."""
    fake_distribution(
        tmp_path / "installed",
        "swift-rlx-comment-bonus",
        entry_points={"swift_rlx.rewards": {"comment_bonus": "swift_rlx_comment_bonus:comment_bonus"}},
        modules={},
    )
    monkeypatch.syspath_prepend(str(PLUGINS / "comment_bonus"))
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    (tmp_path / "my_rewards.py").write_text(snippet_with("aiohttp"), encoding="utf-8")
    monkeypatch.setattr(REWARDS, "_registered", {})
    REWARDS.refresh()
    yield tmp_path
    monkeypatch.undo()
    REWARDS.refresh()


@pytest.mark.usefixtures("rollout_server")
@pytest.mark.usefixtures("eight_cards")
@pytest.mark.parametrize("words", swift_commands(read("en", "names")), ids=lambda words: words[-2])
def test_a_command_of_the_page_is_accepted(
    words: list[str],
    tiny_model: Path,
    write_rows: Callable[..., Path],
    rewards_of_the_page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(rewards_of_the_page)
    args = parser()(without_downloads(words, tiny_model, write_rows(16), tmp_path / "out"))
    assert args.rlx_type in ALGORITHMS
