"""`swift-rlx store generate`: mistakes before anything is loaded, and the same store however often it is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from swift_rlx.cli import main as command_line
from swift_rlx.cli import store_generate
from swift_rlx.integration import candidate_model
from swift_rlx.integration.devices import Machine
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.verification import verify

NAMES = [f"number {number}" for number in range(48)]
KILLED = """
import os, signal, sys
from swift_rlx.cli.main import main
from swift_rlx.store.round_writer import RoundWriter

seal = RoundWriter.seal

def dying(writer):
    if seal(writer) == 1:
        os.kill(os.getpid(), signal.SIGKILL)

RoundWriter.seal = dying
main(sys.argv[1:])
"""


def command(tmp_path, model, store, *more):
    file = tmp_path / "prompts.jsonl"
    rows = ({"question": f"Say {name}.", "solution": name, "row": row} for row, name in enumerate(NAMES))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("store", "generate", str(tmp_path / store), str(file), "--columns", "prompt=question"),
        *("--model", str(model), "--template", "chatml", "--model-type", "llama", "--system", "Be brief."),
        *("--n", "3", "--temperatures", "0.5", "1", "--top-k", "20", "--max-tokens", "12", "--seed", "5"),
        *("--backend", "transformers", "--max-inflight", "8", *more),
    ]


def contents(folder):
    found = {}
    snapshot = TrajectoryStore.open(folder).snapshot()
    for stored in snapshot.groups(range(snapshot.num_groups)):
        for one, text in zip(stored.group.members, stored.texts, strict=True):
            key = (stored.group.prompt.columns["row"], one.member)
            assert key not in found
            found[key] = (one.completion.token_ids.tolist(), text, one.completion.logprobs)
    return found


@pytest.mark.slow
def test_a_killed_run_that_is_begun_again_makes_the_store_of_an_undisturbed_one(tmp_path, tiny_model, capsys):
    plugin = tmp_path / "letters.py"
    plugin.write_text(
        "from swift_rlx import register_reward\n\n"
        "@register_reward('letters', version='1')\n"
        "def letters(completion, solution, **columns):\n    return float(len(completion))\n"
    )
    scored = ["--rewards", "letters", "--external-plugins", str(plugin)]
    assert command_line.main(command(tmp_path, tiny_model, "whole", *scored)) == 0
    shown = capsys.readouterr()
    assert "generated 144 answers to 48 prompts, " in shown.out
    assert "letters: 144 computed" in shown.out
    assert "144/144" in shown.err

    dying = [sys.executable, "-c", KILLED, *command(tmp_path, tiny_model, "killed", "--seal-s", "0")]
    died = subprocess.run(dying, stderr=subprocess.PIPE, text=True, timeout=200, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    before = contents(tmp_path / "killed")
    assert 0 < len(before) < 144
    again = command(tmp_path, tiny_model, "killed", "--workers", "2")
    assert command_line.main(again) == 0
    shown = capsys.readouterr().out
    assert f"{len(before) // 3} of 48 prompts have their answers in the store already" in shown
    assert f"generated {144 - len(before)} answers" in shown

    whole, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert whole.keys() == killed.keys() == {(row, member) for row in range(48) for member in range(3)}
    for key, (ids, text, logprobs) in whole.items():
        assert (ids, text) == killed[key][:2]
        np.testing.assert_allclose(logprobs, killed[key][2], rtol=2e-3, atol=2e-3)
    store = TrajectoryStore.open(tmp_path / "killed")
    assert verify(store.place, store.manifest()).is_sound
    check_first_group(TrajectoryStore.open(tmp_path / "whole"), tiny_model)
    assert command_line.main(again) == 0
    assert "48 of 48 prompts have their answers" in capsys.readouterr().out


def check_first_group(store, tiny_model):
    """What is kept of a group, and that its log-probs are those of its sampling."""
    import torch
    from transformers import LlamaForCausalLM

    [stored] = [one for one in store.snapshot().groups(range(48)) if one.group.order == 7]
    assert stored.engine.startswith(f"transformers float32 {tiny_model}@")
    prompt = stored.group.prompt
    assert (prompt.columns["solution"], prompt.columns["messages"][0]["content"]) == ("number 7", "Be brief.")
    assert [one.temperature for one in stored.sampling] == [0.5, 1.0, 0.5]
    assert [one.score.reward for one in stored.group.members] == [len(text) for text in stored.texts]
    model, answer = LlamaForCausalLM.from_pretrained(tiny_model).eval(), stored.group.members[0].completion
    ids = torch.tensor([[*prompt.token_ids.tolist(), *answer.token_ids.tolist()]])
    scores = model(ids).logits[0, len(prompt.token_ids) - 1 : -1] / 0.5
    scores = scores.masked_fill(scores < scores.topk(20).values[:, -1:], -torch.inf).log_softmax(-1)
    expected = scores.gather(1, ids[0, len(prompt.token_ids) :, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(answer.logprobs, expected, rtol=2e-3, atol=2e-3)


@pytest.fixture
def bare_machine(monkeypatch):
    """Without vLLM and accelerators."""
    monkeypatch.setattr("swift_rlx.backends.vllm_contract.installed_version", lambda: None)
    monkeypatch.setattr(candidate_model, "this_machine", lambda use_cpu: Machine((), 1, cores=2))


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--columns", "answer=a"], 2, "--columns answer=... is refused: here a column means prompt or id"),
        (
            ["--columns", "prompt=nothing"],
            1,
            "it has no prompt in a column nothing; its columns are question",
        ),
        (["--temperatures", "-1"], 2, "temperature -1 is refused: it must be at least 0"),
        (["--n", "0"], 2, "0 candidates a prompt are refused: use at least 1"),
        (["--workers", "0"], 2, "--workers 0 is refused: use at least 1"),
        (["--engine-options", "3"], 2, "--engine-options 3 is no JSON object"),
        (["--weights", "1"], 2, "--weights and --normalize are refused without --rewards"),
        (["--rewards", "nobody"], 1, "'nobody'"),
        (["--rewards", "format", "--weights", "1", "2"], 2, "1 sources with 2 --weights are refused"),
        (
            ["--model", "/nowhere"],
            2,
            "--model /nowhere is refused: there is no folder '/nowhere'; give that of a",
        ),
        (["--backend", "vllm"], 2, "--backend vllm is refused: vLLM is not installed; pip install"),
        (["--backend", "other"], 2, "--backend other is not installed; use one of auto, "),
        (["--backend", "no_such:create"], 2, "--backend no_such:create is refused: ModuleNotFoundError"),
        (["--workers", "100000"], 2, "--workers 100000 is refused: without an accelerator at most "),
        (["--engine-options", '{"enforce_eager": true}'], 2, "has no effect: the workers run transformers"),
        (
            ["--max-tokens", "512"],
            2,
            "--max-tokens 512 leaves no room for a prompt in the model's 512 tokens",
        ),
        (["--max-tokens", "500"], 1, "line 1: its prompt has "),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_made(tmp_path, tiny_model, capsys, more, code, message):
    assert command_line.main(command(tmp_path, tiny_model, "s", *more)) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.splitlines()[-1].startswith("swift-rlx: error: ")
    assert not shown.out
    assert not (tmp_path / "s").exists()


def test_a_folder_of_other_files_is_refused_before_the_prompts_are_read(tmp_path, capsys):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "notes.txt").write_text("mine")
    words = ["store", "generate", str(tmp_path / "s"), str(tmp_path / "nowhere.jsonl"), "--model", "/nowhere"]
    assert command_line.main(words) == 1
    assert "is refused as a store: it has no store.json, but other files, such as 'notes.txt'" in (
        capsys.readouterr().err
    )
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("flag", "field", "value"),
    [
        (["--top-p", "0.9"], "top_p", 0.9),
        (["--top-k", "7"], "top_k", 7),
        (["--min-p", "0.1"], "min_p", 0.1),
        (["--repetition-penalty", "1.2"], "repetition_penalty", 1.2),
        (["--max-tokens", "9"], "max_tokens", 9),
        (["--temperatures", "0.3"], "temperature", 0.3),
    ],
)
def test_each_flag_of_the_sampling_reaches_it(flag, field, value):
    words = ["store", "generate", "s", "p.jsonl", "--model", "m"]
    plain, changed = (
        store_generate._samplings(command_line.build_parser().parse_args(words + more))[0]
        for more in ([], flag)
    )
    assert getattr(changed, field) == value
    assert changed != plain


def test_the_help_has_an_example(capsys):
    with pytest.raises(SystemExit, match="0"):
        command_line.main(["store", "generate", "--help"])
    shown = capsys.readouterr().out
    assert "example:\n    swift-rlx store generate answers.store prompts.jsonl --model" in shown
    assert "\nIt may be stopped or killed" in shown
