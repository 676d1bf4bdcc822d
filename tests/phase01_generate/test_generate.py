"""Phase 01: generation is a loop around one function. The model here is a table, so every answer is known by hand."""

import numpy as np
import pytest

from minifer.errors import RequestError
from minifer.generate import generate, greedy

VOCABULARY = 11
FOLLOWS = {3: 5, 5: 7, 7: 2, 2: 9, 9: 3}  # a cycle of length 5


class TableModel:
    """Looks at the last token only, and remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, ids) -> np.ndarray:
        self.calls.append(tuple(ids))
        return np.eye(VOCABULARY, dtype=np.float32)[FOLLOWS[ids[-1]]]


def test_follows_the_table():
    assert list(generate(TableModel(), [3], max_tokens=6)) == [5, 7, 2, 9, 3, 5]


def test_every_call_sees_everything_so_far():
    """The quadratic work that the KV cache will save: 2 + 3 + 4 positions for three tokens."""
    model = TableModel()
    list(generate(model, [9, 3], max_tokens=3))
    assert model.calls == [(9, 3), (9, 3, 5), (9, 3, 5, 7)]


def test_stops_after_eos_and_yields_it():
    assert list(generate(TableModel(), [3], max_tokens=9, eos_ids=[8, 2])) == [5, 7, 2]


def test_eos_as_the_very_first_token():
    model = TableModel()
    assert list(generate(model, [7], max_tokens=9, eos_ids=[2])) == [2]
    assert len(model.calls) == 1


def test_eos_in_the_prompt_does_not_stop():
    assert list(generate(TableModel(), [2], max_tokens=2, eos_ids=[2])) == [9, 3]


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_yields_at_most_max_tokens_and_calls_no_more_often(max_tokens):
    model = TableModel()
    assert len(list(generate(model, [3], max_tokens=max_tokens))) == max_tokens
    assert len(model.calls) == max_tokens


def test_tokens_come_one_at_a_time():
    """Streaming: a token is handed out before the next one is computed."""
    model = TableModel()
    stream = generate(model, [3], max_tokens=5)
    assert (next(stream), next(stream), len(model.calls)) == (5, 7, 2)


def test_the_prompt_is_left_alone():
    prompt = [3]
    list(generate(TableModel(), prompt, max_tokens=4))
    assert prompt == [3]


def test_another_way_to_choose():
    def least_likely_but_one(logits: np.ndarray) -> int:
        return int(np.argsort(logits, kind="stable")[1])

    def model(ids):
        return np.array([0.3, 0.1, 0.2]) + 0.0 * len(ids)

    assert list(generate(model, [0], max_tokens=3, choose=least_likely_but_one)) == [2, 2, 2]


@pytest.mark.parametrize(("prompt", "max_tokens", "named"), [([], 3, "empty"), ([3], -1, "-1")])
def test_bad_input_is_named(prompt, max_tokens, named):
    with pytest.raises(RequestError, match=named):
        list(generate(TableModel(), prompt, max_tokens=max_tokens))


def test_greedy_takes_the_first_of_equals():
    assert greedy(np.array([0.1, 4.0, 4.0, 4.0])) == 1


@pytest.mark.parametrize(
    ("logits", "best"), [([0.2, -1.0, 3.5, 3.0], 2), ([-7.0, -2.5, -4.0], 1), ([9.0, -np.inf, 8.0], 0)]
)
def test_greedy_takes_the_largest(logits, best):
    assert greedy(np.array(logits, dtype=np.float32)) == best


def test_greedy_gives_a_plain_int():
    """A token id goes into lists, dictionaries and JSON, where a NumPy integer is a stranger."""
    assert type(greedy(np.array([0.0, 1.0]))) is int
