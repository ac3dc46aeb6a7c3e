"""What limited a run: a table of cases, and the token ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_rlx.monitors import Phase, RolloutPlan, RunTotals
from swift_rlx.monitors.summary import Limit, judge, ledger_line, summary_line
from swift_rlx.types import Fate

PLAN = RolloutPlan(workers=2, max_inflight=32, max_staleness=2)


def totals(train=0.6, wait=0.0, publish=0.0, evaluate=0.0, save=0.0, **other):
    shares = {
        Phase.TRAIN: train,
        Phase.WAIT: wait,
        Phase.PUBLISH: publish,
        Phase.EVALUATE: evaluate,
        Phase.SAVE: save,
    }
    given = {"steps": 100, "generate_s": 4.0, "score_s": 0.1, "mean_inflight": 30.0, "slots": 64}
    seconds = {phase: 1000.0 * share for phase, share in shares.items()}
    return RunTotals(**{**given, **other}, wall_s=1000.0, seconds=seconds)


CASES = {
    "slots are full": (
        totals(wait=0.4, mean_inflight=60),
        PLAN,
        "generation",
        "--rollout_workers 4 would feed the trainer, or raise --rollout_max_inflight",
    ),
    "adapted slots are full": (
        totals(wait=0.2, mean_inflight=60),
        RolloutPlan(2, None, 2),
        "generation",
        "--rollout_workers 3 would feed the trainer, or raise --rollout_target_latency_s",
    ),
    "slots are free": (totals(wait=0.4), PLAN, "the staleness bound", "raise --max_staleness (2)"),
    "drained": (
        totals(wait=0.4),
        RolloutPlan(2, 32, 2, "drain"),
        "the staleness bound",
        "raise --max_staleness (2), or use a backend that can keep answers in flight while weights are published",
    ),
    "on-policy": (
        totals(wait=0.4, mean_inflight=60),
        RolloutPlan(2, 32, 0),
        "taking turns",
        "set --max_staleness 1 or more, so that generation and training overlap",
    ),
    "the only server was out": (
        totals(wait=0.4, score_s=5.0, away_s=250.0, workers=("http://gpu7:8000",)),
        PLAN,
        "workers that were out",
        "see the log for the cause; a further worker would have gone on meanwhile",
    ),
    "slow reward": (
        totals(wait=0.4, mean_inflight=60, score_s=5.0),
        PLAN,
        "rewards",
        "make the slowest reward faster, asynchronous or smaller",
    ),
    "publishing": (
        totals(wait=0.1, publish=0.3),
        PLAN,
        "publishing weights",
        "publish less often (--steps_per_generation), or train LoRA, of which only the adapter is published",
    ),
    "evaluation": (
        totals(wait=0.1, evaluate=0.3),
        PLAN,
        "evaluation",
        "evaluate less often (--eval_steps) or on fewer rows",
    ),
    "checkpoints": (totals(save=0.3), PLAN, "saving checkpoints", "save less often (--save_steps)"),
    "the rest": (
        totals(wait=0.1),
        PLAN,
        "the trainer's work between its steps",
        "use longer steps (--gradient_accumulation_steps), or profile the trainer",
    ),
    "training, a worker too many": (
        totals(train=0.97, wait=0.01, mean_inflight=20),
        PLAN,
        "training",
        "the answers in flight fit on 1 worker: give the devices of 1 worker to the trainer",
    ),
    "training": (
        totals(train=0.97, wait=0.01, mean_inflight=40),
        PLAN,
        "training",
        "only a faster trainer makes it faster: more ranks, or larger micro-batches",
    ),
}


@pytest.mark.parametrize(("run", "plan", "limit", "advice"), CASES.values(), ids=CASES)
def test_the_limit_is_named_with_what_to_change(run, plan, limit, advice):
    verdict = judge(run, plan)
    assert (verdict.limit.value, verdict.advice) == (limit, advice)


def test_who_was_out_is_named_where_it_was_alone_and_is_no_limit_where_that_was_short():
    one, two = ("http://gpu7:8000",), ("worker-0", "worker-1")
    waited = "the trainer waited 40 % of the time; for 4 min"
    for names, who in ((one, one[0]), (two, "every worker")):
        run = totals(wait=0.4, away_s=240.0, workers=names)
        assert judge(run, PLAN).evidence == f"{waited} {who} was out"
        assert judge(replace(run, away_s=150.0), PLAN).limit is not Limit.AWAY


def test_the_table_has_every_limit():
    assert {limit for _, _, limit, _ in CASES.values()} == {limit.value for limit in Limit}


SECOND = {
    "over age": (
        totals(train=0.97, mean_inflight=40, tokens={Fate.TRAINED: 90, Fate.OVER_AGE: 10}),
        "; 10 % of the tokens were over age: raise --max_staleness (2)",
    ),
    "cut": (
        totals(train=0.97, mean_inflight=40, tokens={Fate.TRAINED: 90, Fate.CUT: 10}),
        "; 10 % of the tokens were cut when weights were published: use --weight_update drain",
    ),
    "rejected": (
        totals(train=0.97, mean_inflight=40, tokens={Fate.TRAINED: 60, Fate.REJECTED: 40}),
        "larger micro-batches",
    ),
    "failed": (
        totals(train=0.97, mean_inflight=40, tokens={Fate.TRAINED: 90, Fate.FAILED: 10}),
        "; 10 % of the tokens were lost to failures: see the log",
    ),
    "failovers": (
        totals(train=0.97, mean_inflight=40, failovers=2),
        "; workers were taken out 2 times: see the log",
    ),
    "nothing": (totals(train=0.97, mean_inflight=40), "larger micro-batches"),
    "said already": (
        totals(wait=0.4, tokens={Fate.TRAINED: 1, Fate.OVER_AGE: 1}),
        "raise --max_staleness (2)",
    ),
}


@pytest.mark.parametrize(("run", "end"), SECOND.values(), ids=SECOND)
def test_a_second_advice_follows_where_there_is_one(run, end):
    line = summary_line(run, replace(PLAN, weight_update="abort"))
    assert line.endswith(end)
    assert line.count("; ") == (end[0] == ";")
    assert line.count("--max_staleness") <= 1


@pytest.mark.parametrize("mode", ["keep", "pin", "drain"])
def test_where_publishing_cuts_nothing_what_the_end_cut_is_no_reason_to_drain(mode):
    run, _ = SECOND["cut"]
    assert "cut" not in summary_line(run, replace(PLAN, weight_update=mode))


def test_the_line_has_the_numbers_that_the_verdict_rests_on():
    assert summary_line(totals(wait=0.4, mean_inflight=60), PLAN) == (
        "rollout: 100 steps, 17 min after the first 2, trainer 60 % busy, limited by generation (the trainer waited"
        " 40 % of the time, 60 of 64 slots were in use): --rollout_workers 4 would feed the trainer, or raise"
        " --rollout_max_inflight"
    )


@pytest.mark.parametrize(("steps", "text"), [(0, "0 steps"), (1, "1 step"), (6, "6 steps")])
def test_a_run_that_is_too_short_says_so(steps, text):
    said = f"rollout: {text}, too few to say what limits the run, which takes 7"
    assert summary_line(RunTotals(steps=steps), PLAN) == said
    assert summary_line(totals(wait=0.4, steps=steps), PLAN) == said


def test_seven_steps_are_judged():
    assert "limited by the staleness bound" in summary_line(totals(wait=0.4, steps=7), PLAN)


@given(st.lists(st.integers(0, 10**12), min_size=len(Fate), max_size=len(Fate)))
def test_the_ledger_sums_to_100_percent(counts):
    line = ledger_line(dict(zip(Fate, counts, strict=True)))
    if not sum(counts):
        assert line == "tokens: none were generated"
        return
    shown = {part.rsplit(" ", 2)[0]: part.rsplit(" ", 2)[1] for part in line.split(": ", 2)[2].split(", ")}
    assert set(shown) == {fate.value for fate in Fate}
    assert sum(round(10 * float(share)) for share in shown.values()) == 1000
    for fate, count in zip(Fate, counts, strict=True):
        assert abs(float(shown[fate.value]) - 100 * count / sum(counts)) < 0.1


def test_the_ledger_reads_as_a_sentence():
    line = ledger_line(
        {Fate.TRAINED: 931_000, Fate.OVER_AGE: 52_000, Fate.FAILED: 4_000, Fate.IN_FLIGHT: 13_000}
    )
    assert line == (
        "tokens: 1.0M generated: trained 93.1 %, over age 5.2 %, cut 0.0 %, failed 0.4 %, rejected 0.0 %, stored 0.0 %,"
        " in flight 1.3 %"
    )
