"""Workloads: arrival times, lengths and prompts as functions of a seed."""

import json
import math
import statistics
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer.apps import workloads
from minifer.apps.workloads import arrival_times, make_workload
from minifer.errors import FormatError, UsageError
from minifer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_path):
    return Tokenizer.from_pretrained(tiny_path)


def gaps(times):
    return [b - a for a, b in pairwise(times)]


def test_infinite_rates_and_burstiness():
    """Rate inf is everything at once, burstiness inf a metronome."""
    assert arrival_times(4, math.inf, 0.5, 3) == [0.0] * 4
    assert arrival_times(5, 4.0, math.inf, 3) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert arrival_times(0, 2.0) == []
    assert arrival_times(1, 2.0) == [0.0]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, -math.inf])
def test_what_is_not_above_zero_is_refused(value):
    with pytest.raises(UsageError):
        arrival_times(3, value)
    with pytest.raises(UsageError):
        arrival_times(3, 2.0, value)
    with pytest.raises(UsageError):  # also where it would not be used
        arrival_times(3, math.inf, value)


def test_gaps_are_exponential():
    """Mean 1/rate, standard deviation the same, and the distribution's own shape: 63.2 % lie below the mean."""
    found = gaps(arrival_times(20_001, 200.0, seed=11))
    assert statistics.fmean(found) == pytest.approx(1 / 200, rel=0.03)
    assert statistics.pstdev(found) == pytest.approx(1 / 200, rel=0.04)
    assert sum(gap < 1 / 200 for gap in found) / len(found) == pytest.approx(1 - 1 / math.e, abs=0.012)
    assert len(set(found)) > 19_990, "not whole numbers of anything"


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 9.0])
def test_burstiness_changes_the_spread_and_not_the_mean(burstiness):
    found = gaps(arrival_times(20_001, 5.0, burstiness, seed=4))
    assert statistics.fmean(found) == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(found) == pytest.approx(0.2 / math.sqrt(burstiness), rel=0.06)


def test_the_span_of_a_thousand_requests():
    """1,000 requests at 200/s take 5 s, give or take 1/sqrt(1000) of it."""
    assert arrival_times(1000, 200.0, seed=0)[-1] == pytest.approx(5.0, abs=4 * 5 / math.sqrt(1000))


@given(n=st.integers(0, 60), rate=st.floats(0.01, 1e4), burstiness=st.floats(0.05, 50), seed=st.integers())
def test_times_rise_from_zero_and_depend_on_the_seed_alone(n, rate, burstiness, seed):
    times = arrival_times(n, rate, burstiness, seed)
    assert len(times) == n
    assert times == sorted(times)
    assert times[:1] == [0.0][:n]
    assert times == arrival_times(n, rate, burstiness, seed)
    assert times == pytest.approx([at / rate for at in arrival_times(n, 1.0, burstiness, seed)])
    if n > 1:
        assert times != arrival_times(n, rate, burstiness, f"{seed}'")


def test_random_lengths_fill_vllms_range():
    """ratio 0.3 of 10 and 7: floor(7.0) to ceil(13.0) and floor(4.9) to ceil(9.1), both ends included."""
    found = make_workload(num_prompts=600, vocab_size=50, random_input_len=10, random_output_len=7,
                          random_range_ratio=0.3)  # fmt: skip
    assert {len(a.prompt_ids) for a in found} == set(range(7, 14))
    assert {a.output_len for a in found} == set(range(4, 11))
    apart = make_workload(num_prompts=300, vocab_size=50, random_input_len=10, random_output_len=2,
                          random_range_ratio={"input": 0.0, "output": 0.9})  # fmt: skip
    assert {len(a.prompt_ids) for a in apart} == {10}
    assert {a.output_len for a in apart} == {1, 2, 3, 4}


def test_a_shared_prefix_stands_before_random_prompts():
    found = make_workload(num_prompts=5, vocab_size=999, random_input_len=6, random_prefix_len=4)
    assert len({a.prompt_ids[:4] for a in found}) == 1
    assert len({a.prompt_ids[4:] for a in found}) == 5
    assert {len(a.prompt_ids) for a in found} == {10}


def test_the_same_prompts_at_every_rate():
    slow, fast = (make_workload(num_prompts=8, vocab_size=99, request_rate=rate, seed=5) for rate in (0.5, 7.0))
    assert [a.prompt_ids for a in slow] == [a.prompt_ids for a in fast]
    assert [a.at * 0.5 for a in slow] == pytest.approx([a.at * 7.0 for a in fast])
    assert slow[3].prompt_ids != make_workload(num_prompts=8, vocab_size=99, seed=6)[3].prompt_ids


def test_prompts_of_words_have_the_same_tokens_as_ids_and_as_text(tokenizer):
    """A server that is sent text counts just as many tokens as one that is sent ids."""
    for a in make_workload(num_prompts=20, tokenizer=tokenizer, random_input_len=30, random_prefix_len=3):
        assert tuple(tokenizer.encode(a.prompt)) == a.prompt_ids
        assert len(a.prompt_ids) == 33


def test_without_words_there_are_ids(tokenizer, monkeypatch):
    monkeypatch.setattr(workloads, "whole_words", lambda _: [300])
    (one,) = make_workload(num_prompts=1, tokenizer=tokenizer, random_input_len=40)
    assert one.prompt is None
    assert len(set(one.prompt_ids)) > 20


def test_prefix_repetition():
    found = make_workload("prefix_repetition", num_prompts=23, vocab_size=9999, prefix_repetition_num_prefixes=4,
                          prefix_repetition_prefix_len=6, prefix_repetition_suffix_len=2, seed=1)  # fmt: skip
    heads = [a.prompt_ids[:6] for a in found]
    assert Counter(Counter(heads).values()) == {5: 4}, "23 // 4 prompts for each of 4 prefixes"
    assert heads != sorted(heads, key=heads.index), "shuffled"
    assert len({a.prompt_ids for a in found}) == 20
    assert [a.index for a in found] == list(range(20))


def test_custom_lines(tmp_path, tokenizer):
    path = tmp_path / "asked.jsonl"
    lines = [{"prompt": "Anna has two cats.", "output_tokens": 3}, {"prompt_ids": [5, 6], "output_tokens": 9}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = make_workload("custom", num_prompts=3, dataset_path=path, custom_output_len=-1, disable_shuffle=True,
                          tokenizer=tokenizer)  # fmt: skip
    assert [a.output_len for a in found] == [3, 9, 3], "used again from the start"
    assert found[0].prompt == "Anna has two cats."
    assert found[0].prompt_ids == tuple(tokenizer.encode(found[0].prompt))
    assert (found[1].prompt, found[1].prompt_ids) == (None, (5, 6))
    assert len(make_workload("custom", num_prompts=None, dataset_path=path)) == 2
    assert {a.output_len for a in make_workload("custom", num_prompts=4, dataset_path=path)} == {256}


@pytest.mark.parametrize(
    "line",
    ["[1]", "nonsense", '{"text": "a"}', '{"prompt": 3}', '{"prompt_ids": []}', '{"prompt_ids": [true]}',
     '{"prompt": "a", "output_tokens": 0}', ""],
)  # fmt: skip
def test_lines_that_are_no_requests(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(FormatError, match=r"line 2|no lines"):
        make_workload("custom", dataset_path=path)


@pytest.mark.parametrize(("data", "said"), [(b"\xba\n", "not UTF-8 text: invalid start byte at byte 0"),
                                            (b"[" * 100_000, "line 1: maximum recursion")])  # fmt: skip
def test_bytes_that_are_no_lines(tmp_path, data, said):
    (tmp_path / "bad.jsonl").write_bytes(data)
    with pytest.raises(FormatError, match=said):
        make_workload("custom", dataset_path=tmp_path / "bad.jsonl")


@pytest.mark.parametrize(
    "wrong",
    [{"num_prompts": 0}, {"random_input_len": 0}, {"random_output_len": 0}, {"random_range_ratio": 1.0},
     {"random_range_ratio": {"input": 0.1}}, {"random_prefix_len": -1}, {"vocab_size": None},
     {"dataset_name": "sharegpt"}, {"dataset_name": "custom"}, {"request_rate": 0},
     {"dataset_name": "prefix_repetition", "num_prompts": 3}],
)  # fmt: skip
def test_values_that_make_no_sense(wrong):
    with pytest.raises(UsageError):
        make_workload(**{"num_prompts": 2, "vocab_size": 50, **wrong})
