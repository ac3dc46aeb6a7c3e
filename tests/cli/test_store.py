"""`swift-rlx store`: each command does what it says, and a user's mistake is one sentence."""

from __future__ import annotations

import json
import re
import sys

import pytest
from stored_groups import filled, stored_group

from swift_rlx.cli import main as command_line
from swift_rlx.store import TrajectoryStore


def run(capsys, *arguments, code=0):
    """What the command printed, on stderr where it was refused."""
    assert command_line.main(["store", *map(str, arguments)]) == code
    out = capsys.readouterr()
    return out.err if code in (1, 2) and not out.out else out.out


def a_store(tmp_path, rounds=3):
    store = TrajectoryStore.create(tmp_path / "s", buckets=1)
    for number in range(rounds):
        filled(store, [stored_group(2 * number), stored_group(2 * number + 1, (1.0, None))])
    return tmp_path / "s"


def test_info_counts_what_is_there(tmp_path, capsys):
    folder = a_store(tmp_path)
    shown = run(capsys, "info", folder)
    assert "trajectories: 12\ngroups: 6\nprompts: 6\ntokens: 60\nunscored trajectories: 3\n" in shown
    assert "    length@2: 6\n" in shown
    facts = json.loads(run(capsys, "info", folder, "--json"))
    assert (facts["groups"], facts["groups without spread"], facts["shards"]) == (6, 3, 3)
    assert facts["last sealed round by writer"] == {"a": 2}


def test_verify_ends_with_1_where_something_is_damaged_and_repair_takes_it_out(tmp_path, capsys):
    folder = a_store(tmp_path)
    assert run(capsys, "verify", folder).endswith("\nsound\n")
    [victim, *_] = sorted(folder.rglob("*.texts.arrow"))
    victim.write_bytes(victim.read_bytes()[:-1])
    shown = run(capsys, "verify", folder, code=1)
    assert re.search(r"damaged: shard \S+, 4 trajectories: .* has \d+ bytes of \d+", shown)
    assert shown.endswith("NOT sound\n")
    assert "took out 1 shards with 4 trajectories; 8 are left" in run(capsys, "verify", folder, "--repair")
    assert run(capsys, "verify", folder).endswith("\nsound\n")


def test_compact_merges_and_deletes_after_a_while(tmp_path, capsys):
    folder = a_store(tmp_path)
    assert "deleted 0 files" in run(capsys, "compact", folder, "--target-mb", "0.000001")
    assert "merged 3 shards into 1: 12 trajectories\ndeleted 0 files" in run(capsys, "compact", folder)
    assert "nothing to merge\ndeleted 6 files" in run(capsys, "compact", folder, "--keep-s", "0")
    assert "--target-mb -1" in run(capsys, "compact", folder, "--target-mb", "-1", code=2)


def test_compact_tells_merging_from_putting_scores_in_their_place(tmp_path, capsys):
    folder = a_store(tmp_path)
    run(capsys, "score", folder, "--stored", "length@2")
    shown = run(capsys, "compact", folder, "--target-mb", "0.000001")
    assert shown.startswith(
        "nothing to merge; scores were put into the 3 shards that they are of: 12 trajectories\n"
    )
    assert run(capsys, "compact", folder, "--target-mb", "0.000001").startswith("nothing to merge\n")


def test_a_reward_that_may_not_be_computed_is_refused_by_the_flag_as_it_is_typed(tmp_path, capsys):
    words = ["score", a_store(tmp_path), "--rewards", "format", "--reward-on-error", "skip"]
    assert run(capsys, *words, code=2).startswith("swift-rlx: error: --reward-on-error got 'skip': it is")


def test_import_export_and_scores_by_people(tmp_path, capsys):
    log, folder = tmp_path / "log.jsonl", tmp_path / "new"
    rows = [
        {"question": "q", "prompt_ids": [1], "token_ids": [2, number], "rating": number} for number in (3, 4)
    ]
    log.write_text("\n".join(json.dumps(row) for row in [*rows, {"question": "q"}]))
    command = [
        "import",
        folder,
        log,
        "--columns",
        "prompt=question",
        "score=rating",
        "--source",
        "judge",
        "--version",
        "7",
    ]
    assert "line 3: it has no answer" in run(capsys, *command, code=1)
    shown = run(capsys, *command, "--skip-unfit", "--buckets", "2", "--exact-logprobs")
    assert "imported 2 trajectories of 1 prompts; 2 have no log-probs\nleft out 1 rows, such as:" in shown
    assert "judge@7: 1\n" in run(capsys, "info", folder)
    assert "is in the store" in run(capsys, *command, "--skip-unfit", code=1)
    settings = json.loads((folder / "store.json").read_text())
    assert (settings["buckets"], settings["logprobs"]) == (2, "single")
    assert "give the model" in run(capsys, "export", folder, tmp_path / "a.jsonl", code=1)
    assert "use .jsonl, or --sheet" in run(capsys, "export", folder, tmp_path / "a.csv", code=2)


def test_a_model_that_is_no_folder_and_a_store_among_other_files_are_refused(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("prompt,answer\n2+2?,4\n")
    shown = run(capsys, "import", tmp_path / "s", log, "--model", "./nowhere", code=2)
    assert "--model ./nowhere is refused: there is no folder '" in shown
    assert not (tmp_path / "s").exists()
    shown = run(capsys, "import", tmp_path, log, "--model", "./nowhere", code=1)
    assert "but other files, such as 'log.csv'; give the directory of a store" in shown
    shown = run(capsys, "import", log, log, code=1)
    assert f"'{log}' is a file; give the directory of a store" in shown


def test_a_sheet_comes_back_with_scores(tmp_path, capsys):
    folder, sheet = a_store(tmp_path), tmp_path / "sheet.jsonl"
    assert "wrote 12 trajectories" in run(capsys, "export", folder, sheet, "--sheet")
    rows = [json.loads(line) for line in sheet.read_text().splitlines()]
    sheet.write_text("\n".join(json.dumps({"key": row["trajectory_id"], "stars": 2}) for row in rows[:5]))
    shown = run(
        capsys,
        "import",
        folder,
        sheet,
        "--scores-only",
        "--columns",
        "id=key",
        "score=stars",
        "--source",
        "human",
    )
    assert "added 5 scores as human@imported" in shown
    assert f"swift-rlx store score {folder} --stored human@imported" in shown
    assert "12 trajectories have rewards" in run(capsys, "score", folder, "--stored", "human@imported")
    refused = run(capsys, "score", folder, "--stored", "human@impoted", code=2)
    assert "--stored human@impoted is refused: no row has such values; there are human@imported" in refused
    served = run(capsys, "score", folder, "--rewards", "http://a:1/b@v1", code=2)
    assert "--rewards http://a:1/b@v1 is refused: served rewards score in training" in served
    assert "7 of them none" in run(capsys, "score", folder, "--stored", "human@imported"), (
        "they are still there"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["info", "nowhere"], 1, "'nowhere' is no store of trajectories"),
        (
            ["import", "s", "a.jsonl", "--columns", "prompt"],
            2,
            "--columns prompt is refused: write MEANING=NAME",
        ),
        (["score", "nowhere"], 2, "0 sources with 0 --weights are refused"),
        (["score", "nowhere", "--stored", "a@1", "--weights", "1", "2"], 2, "1 sources with 2 --weights"),
        (["rescore", "nowhere"], 1, "'nowhere' is no store"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    shown = run(capsys, *arguments, code=code)
    assert shown.startswith(f"swift-rlx: error: {message}")
    assert shown.count("\n") == 1


def test_stored_scores_become_rewards(tmp_path, capsys):
    folder = a_store(tmp_path)
    shown = run(capsys, "score", folder, "--stored", "length@2", "--normalize", "dataset")
    assert "length: 0 computed, mean 0.666667, std 0.471405 of 9" in shown
    assert "rewards of 'zscore(dataset): 1*length@2'; 3 of them none" in shown
    assert "--stored length is refused" in run(capsys, "score", folder, "--stored", "length", code=2)
    twice = ["--stored", "length@2", "length@3"]
    assert "each name may be given once" in run(capsys, "score", folder, *twice, code=2)
    assert "rewards in 0 processes are refused" in run(
        capsys, "score", folder, "--stored", "length@2", "--workers", "0", code=2
    )


PLUGIN = """
from swift_rlx import register_reward

@register_reward("digits", version="{version}")
def digits(completion, solution, **columns):
    return {value} if completion.endswith("1") else float(len(solution))
"""


@pytest.mark.slow
def test_rewards_of_a_plugin_score_and_another_version_rescores(tmp_path, capsys, monkeypatch):
    folder, plugin = a_store(tmp_path), tmp_path / "digits_plugin.py"
    plugin.write_text(PLUGIN.format(version="1", value=5.0))
    shown = run(
        capsys, "score", folder, "--rewards", "digits", "--stored", "length@2", "--weights", "1", "0.5",
        "--external-plugins", plugin, "--workers", "2",
    )  # fmt: skip
    assert "digits: 12 computed, mean 3, std 2 of 12" in shown
    assert "'zscore(dataset): 1*digits@1 + 0.5*length@2'; 0 of them none" in shown
    assert "digits: 0 computed" in run(capsys, "rescore", folder, "--external-plugins", plugin)
    plugin.write_text(
        PLUGIN.format(version="2", value=7.0) + "# another length, or Python takes its old bytecode\n"
    )
    for name in [one for one in sys.modules if one.startswith("_swift_external_")]:
        monkeypatch.delitem(sys.modules, name)
    shown = run(capsys, "rescore", folder, "--external-plugins", plugin)
    assert "digits: 12 computed, mean 4, std 3 of 12" in shown
    assert "'zscore(dataset): 1*digits@2 + 0.5*length@2'" in shown
