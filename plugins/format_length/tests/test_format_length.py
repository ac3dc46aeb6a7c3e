import time

import pytest
from swift_rlx_format_length import FormatLength
from swift_rlx_format_length.text import ends_like_a_sentence, repeated_share, split_thinking

from swift_rlx.testing import Example, check_reward

GOOD = "The sun is a star."


def test_it_is_a_reward_as_a_class_and_as_a_configured_object():
    examples = [
        Example(GOOD, expected=1.0),
        Example("太阳是一颗恒星。", expected=1.0),
        Example("", expected=0.0),
    ]
    check_reward(FormatLength, examples=examples)
    check_reward(FormatLength(max_length=30, pattern="sun|太阳"), examples=examples)


def test_the_length_has_soft_edges():
    reward = FormatLength(min_length=10, max_length=20, softness=0.5, ending=False)
    # The other score, repetition, is 1 for texts this short: the mean of the two is (length score + 1) / 2.
    scores = {
        n: reward("abcdefghijklmnopqrstuvwxyz0123456789"[:n]) * 2 - 1 for n in (5, 7, 10, 20, 25, 30, 35)
    }
    assert scores == pytest.approx({5: 0, 7: 0.4, 10: 1, 20: 1, 25: 0.5, 30: 0, 35: 0})


def test_without_softness_the_window_is_hard():
    reward = FormatLength(min_length=3, max_length=5, softness=0, ending=False)
    assert [reward(text) for text in ("ab", "abc", "abcde", "abcdef")] == [0.5, 1, 1, 0.5]


def test_columns_of_a_row_replace_the_settings():
    reward = FormatLength(ending=False)
    assert reward(GOOD, max_length=5) == 0.5
    assert reward(GOOD, min_length=100, max_length=200) == 0.5
    assert reward(GOOD, pattern="moon") == pytest.approx(2 / 3)
    assert reward(GOOD, pattern=None, min_length=None, max_length=None) == 1.0


def test_tokens_are_counted_as_ms_swift_reports_them():
    reward = FormatLength(unit="tokens", max_length=4, softness=0, ending=False)
    assert reward(GOOD, response_token_ids=[[1, 2], [3, 4]]) == 1.0
    assert reward(GOOD, response_token_ids=[[1, 2, 3, 4, 5]]) == 0.5
    assert reward(GOOD, response_token_ids=[]) is None
    assert reward(GOOD) is None
    assert reward("") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "It is.", "Is it?", 'He said: "It is!"', "It is (so it is said.)", "**It is.**", "It is…",
        "It is.  \n",
        "是的。", "是吗？", "「そうです。」", "네, 그렇습니다.", "هل هو كذلك؟", "یہ ہے۔", "यह है।", "Это так.",
        "Είναι;", "Είναι\u037e",
        "Այո։", "አዎ።", "បាទ។", "ဟုတ်ကဲ့။", "ใช่ครับ", "แมว", "ແມ່ນ", "ཡིན།",
    ],
)  # fmt: skip
def test_a_sentence_ends_in_every_script(text):
    assert ends_like_a_sentence(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "It is",
        "It is,",
        "It is:",
        "是的",
        "是的，",
        "そう",
        "यह है",
        "x = 1",
        "x = 1;",
        '""',
        "It is. And",
    ],
)
def test_an_unfinished_sentence_is_noticed(text):
    assert not ends_like_a_sentence(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a</think>b", ("a", "b")),
        ("<think>a</think>b", ("a", "b")),
        ("\n<think>a</think>\nb", ("a", "\nb")),
        ("b", (None, "b")),
        ("", (None, "")),
    ],
)
def test_a_thinking_block_is_found_with_and_without_its_opening_tag(text, parts):
    assert split_thinking(text) == parts


@pytest.mark.parametrize(
    "text",
    ["<think>a", "a</think>", "a</think> \n", "<think>a</think>b</think>c", "<think><think>a</think>b",
     "b<think>a</think>c", "</think>a<think>"],
)  # fmt: skip
def test_a_broken_thinking_block_scores_nothing(text):
    assert split_thinking(text) is None
    assert FormatLength()(text) == 0.0


def test_a_thinking_block_opened_by_the_chat_template_scores_as_one_that_is_written_out():
    reward = FormatLength(require_thinking=True)
    assert reward(f"because</think>{GOOD}") == reward(f"<think>because</think>{GOOD}") == 1.0
    assert reward(GOOD) == 0.0


def test_thinking_is_not_part_of_the_answer():
    reward = FormatLength(max_length=20, softness=0)
    assert reward("<think>" + "no full stop " * 50 + "</think>" + GOOD) == 1.0


@pytest.mark.parametrize("phrase", ["I think so. ", "我认为是这样的。", "นี่คือประโยคเดียวกัน "])
def test_repetition_is_noticed_in_every_script(phrase):
    assert repeated_share(phrase * 50, 10) > 0.9
    assert FormatLength(ending=False, max_length=10_000)(phrase * 50) < 0.6


def test_ordinary_text_is_not_repetition():
    text = (
        "Leave-one-out means that the baseline of a completion is the mean reward of the other completions "
        "of the "
        "same prompt, so that it does not depend on the completion itself and the gradient stays unbiased."
    )
    assert repeated_share(text, 10) < 0.05
    assert FormatLength(ending=False)(text) == 1.0


def test_repetition_within_the_tolerance_costs_nothing():
    text = "abcdefghijklmnopqrstuvwxyz" * 2  # 17 of 43 n-grams occurred before
    assert repeated_share(text, 10) == pytest.approx(17 / 43)
    assert FormatLength(ending=False, tolerance=0.4)(text) == 1.0
    assert FormatLength(ending=False, tolerance=0.0)(text) == pytest.approx((1 + 26 / 43) / 2)


@pytest.mark.parametrize(
    "settings",
    [{"unit": "words"}, {"softness": -1}, {"tolerance": 1}, {"ngram_size": 0},
     {"min_length": 5, "max_length": 4}, {"min_length": 0, "max_length": 0}, {"min_length": -1}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=r"unit is|softness must|lengths must"):
        FormatLength(**settings)


def test_a_row_with_an_impossible_window_is_an_error_and_not_a_score():
    with pytest.raises(ValueError, match=r"got 1 and 0"):
        FormatLength()(GOOD, max_length=0)


@pytest.mark.parametrize("piece", ["<think>", "</think>", '"', ")", " ", "。", "a"])
def test_the_time_grows_with_the_length_and_not_faster(piece):
    start = time.monotonic()
    FormatLength()("x" + piece * 100_000)
    assert time.monotonic() - start < 10  # quadratic work takes minutes
