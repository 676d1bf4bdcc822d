"""The lab tasks of phase 01, on models that are tables: no matrix is needed to get the loop right."""

import numpy as np
import pytest

from minifer.errors import RequestError
from minifer.generate import generate, greedy


def table_model(rng, size):
    """A model whose next token depends on the last token and on the length; and a note of what it was called with."""
    table = rng.permutation(size)
    calls = []

    def model(ids):
        calls.append(list(ids))
        return np.eye(size)[table[(ids[-1] + len(ids)) % size]]

    return model, calls


@pytest.mark.task("1.1")
def test_greedy_takes_the_largest(rng):
    """Also among negative numbers; the answer is a plain int."""
    for size in (1, 7, 50):
        logits = rng.normal(size=size) - 100
        best = greedy(logits)
        assert type(best) is int
        assert logits[best] == logits.max()


@pytest.mark.task("1.1")
def test_greedy_takes_the_first_of_equals(rng):
    """The smaller id wins."""
    logits = np.full(9, -3.0)
    first = int(rng.integers(0, 5))
    logits[[first, 7]] = 2.5
    assert greedy(logits) == first


@pytest.mark.task("1.2")
def test_each_call_sees_everything_so_far(rng):
    """Call n gets the prompt and the n - 1 tokens that were made."""
    model, calls = table_model(rng, 11)
    prompt = rng.integers(0, 11, 3).tolist()
    out = list(generate(model, prompt, max_tokens=5))
    assert len(out) == 5
    assert calls == [prompt + out[:n] for n in range(5)]


@pytest.mark.task("1.2")
def test_tokens_come_one_at_a_time(rng):
    """A token is handed out before the next one is computed: a list that is made first streams nothing."""
    model, calls = table_model(rng, 11)
    stream = iter(generate(model, [3], max_tokens=5))
    assert calls == [], "nothing is computed before somebody asks for the first token"
    seen = [next(stream), next(stream)]
    assert calls == [[3], [3, seen[0]]], "two tokens cost two calls, and no third one in advance"


@pytest.mark.task("1.2")
def test_ends_after_the_end_token_and_yields_it():
    """A table that leads to the end token 0."""
    table = {7: 8, 8: 9, 9: 0, 0: 7}

    def model(ids):
        return np.eye(10)[table[ids[-1]]]

    assert list(generate(model, [7], max_tokens=9, eos_ids=[0])) == [8, 9, 0]
    assert list(generate(model, [7], max_tokens=9, eos_ids=[3, 8])) == [8]
    assert list(generate(model, [7], max_tokens=2, eos_ids=[0])) == [8, 9]
    assert list(generate(model, [9, 7], max_tokens=9, eos_ids=[7, 9])) == [8, 9], "an end in the prompt ends nothing"
    assert list(generate(model, [0], max_tokens=2, eos_ids=[0])) == [7, 8]  # an end in the prompt ended something else


@pytest.mark.task("1.2")
def test_uses_the_choice_it_is_given(rng):
    """`choose` need not be greedy."""
    model, calls = table_model(rng, 6)
    assert list(generate(model, (2,), max_tokens=3, choose=lambda logits: 4)) == [4, 4, 4]
    assert calls[-1] == [2, 4, 4]


@pytest.mark.task("1.2")
def test_refuses_what_makes_no_sense(rng):
    """An empty prompt has no next token; zero tokens are none, and cost no call."""
    model, calls = table_model(rng, 6)
    with pytest.raises(RequestError):
        list(generate(model, [], max_tokens=3))
    with pytest.raises(RequestError):
        list(generate(model, [1], max_tokens=-1))
    assert list(generate(model, [1], max_tokens=0)) == []
    assert calls == []
