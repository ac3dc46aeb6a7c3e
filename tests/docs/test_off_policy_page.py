"""docs/*/off_policy.md: its numbers are what an exact calculation gives, its names those of the code."""

import re

import pytest
import torch
from doc_pages import LANGUAGES, flags, read, tables
from drifted_policy import DELTAS, DriftedPolicy, rule_table

from swift_rlx.algorithms import BUCKET_EDGES, CORRECTIONS

OTHER_ROWS = {
    "product": ("product, not truncated", "不截断的乘积"),
    "sequence mask": ("product, 0 above 2", "乘积，超过 2 时为 0"),
    "geometric mean": ("geometric mean of the ratios", "比值的几何平均"),
    "PPO clip": ("PPO clip around the behavior policy", "以行为策略为中心的 PPO clip"),
}


def page(language):
    return tables(read(language, "off_policy"))


def table_with(language, header):
    [found] = [table for table in page(language) if table[0][0] == header]
    return [[cell.strip("`") for cell in row] for row in found[1:]]


def shown(value):
    return f"{value:.3f}".lstrip("0")


def effective_share(policy, delta):
    behavior = policy.drifted(delta)
    chance = behavior.sum(1).exp()
    return 1 / (chance * (2 * (policy.logprobs().detach() - behavior).sum(1)).exp()).sum().item()


@pytest.fixture(scope="module")
def calculated():
    """Rows of numbers by rule, mean over eight policies; the effective share is the row None."""
    policies = [DriftedPolicy(seed) for seed in range(8)]
    measured = [rule_table(policy) for policy in policies]
    mean = {rule: torch.tensor([each[rule] for each in measured]).mean(0).tolist() for rule in measured[0]}
    shares = torch.tensor([[effective_share(policy, delta) for delta in DELTAS] for policy in policies])
    return mean | {None: shares.mean(0).tolist()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_biases_is_what_the_enumeration_gives(language, calculated):
    published = {row[0]: row[1:] for row in table_with(language, "delta")}
    names = {rule: words[LANGUAGES.index(language)] for rule, words in OTHER_ROWS.items()}
    names[None] = next(iter(published))
    expected = {names.get(rule, rule): [shown(x) for x in row] for rule, row in calculated.items()}
    assert published == expected


@pytest.mark.parametrize(
    ("language", "header"), [("en", "chi2 per token"), ("zh", "每个 token 的 chi2")], ids=LANGUAGES
)
def test_the_table_of_lengths_is_what_its_formula_gives(language, header):
    for chi2, *shares in table_with(language, header):
        assert shares == [shown((1 + float(chi2)) ** -length) for length in (128, 512, 4096)]


@pytest.mark.parametrize(("language", "header"), [("en", "name"), ("zh", "名称")], ids=LANGUAGES)
def test_every_correction_is_on_the_page(language, header):
    assert [row[0] for row in table_with(language, header)] == list(CORRECTIONS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_metric_is_on_the_page(language):
    from swift_rlx.trainers.off_policy import PARTS, TOTALS

    rows = next(table for table in page(language) if table[0][0] == "`offpolicy/...`")[1:]
    named = [name for row in rows for name in re.findall(r"`([\w<>/.]+)`", row[0])]
    parts = ["staleness_<bucket>/...", "positive/...", "negative/..."]
    assert set(named) == {*TOTALS, *parts, "batches_skipped"}
    [bucketed] = [row[1] for row in rows if "bucket" in row[0]]
    assert {*PARTS, "share", *BUCKET_EDGES} == set(re.findall(r"`([\w-]+)`", bucketed))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_flags_of_the_page_exist(language):
    from swift import RLHFArguments

    assert set(flags(read(language, "off_policy"))) <= {*RLHFArguments.__dataclass_fields__}


def test_both_languages_have_the_same_numbers_in_their_tables():
    english, chinese = (
        [sorted(re.findall(r"\d*\.?\d+", str(table[1:]))) for table in page(each)] for each in LANGUAGES
    )
    assert english == chinese
