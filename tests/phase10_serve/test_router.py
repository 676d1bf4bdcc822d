"""The router: always a living replica, the promised one, with bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer.apps.serve.router import POLICIES, Router
from minifer.errors import CapacityError, UsageError

PROMPTS = st.lists(st.integers(0, 3), max_size=40)
STEPS = st.lists(st.tuples(PROMPTS, st.lists(st.integers(0, 9), min_size=3, max_size=3), st.sets(st.integers(0, 2))))


@given(st.sampled_from(POLICIES), STEPS)
def test_every_choice_lives_and_names_a_reason(policy, steps):
    router = Router(policy, 3, block_size=4)
    for prompt, load, dead in steps:
        alive = [i not in dead for i in range(3)]
        if not any(alive):
            with pytest.raises(CapacityError):
                router.choose(prompt, load, alive)
            continue
        choice = router.choose(prompt, load, alive)
        assert alive[choice.replica]
        assert choice.reason
        assert choice.matched_tokens % 4 == 0
        assert choice.matched_tokens <= len(prompt)


@given(st.integers(1, 6), st.integers(1, 40))
def test_round_robin_deals_evenly(replicas, requests):
    router = Router("round-robin", replicas)
    chosen = [router.choose([1], [0] * replicas).replica for _ in range(requests)]
    assert chosen == [i % replicas for i in range(requests)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), PROMPTS)
def test_least_loaded_has_the_least_load(load, prompt):
    assert load[Router("least-loaded", len(load)).choose(prompt, load).replica] == min(load)


@given(STEPS, st.integers(0, 5))
def test_affinity_finds_the_longest_prefix_within_its_price(steps, price):
    """Against a plain model: who was sent the longest common beginning, unless that costs more than the price."""
    router = Router("prefix-affinity", 3, block_size=4, max_imbalance=price)
    sent = [[], [], []]
    for prompt, load, _ in steps:
        found = [max((common(prompt, old) for old in sent[i]), default=0) for i in range(3)]
        choice = router.choose(prompt, load)
        assert choice.matched_tokens == found[choice.replica]
        affordable = [found[i] for i in range(3) if load[i] - min(load) <= price]
        assert load[choice.replica] - min(load) <= price
        best = max(range(3), key=lambda i: (found[i], -load[i]))
        if load[best] - min(load) <= price:
            assert found[choice.replica] == max(affordable)
        sent[choice.replica].append(prompt)


def common(a, b):
    """Tokens in the whole blocks of 4 that two prompts begin with."""
    blocks = 0
    while 4 * blocks + 4 <= min(len(a), len(b)) and a[4 * blocks : 4 * blocks + 4] == b[4 * blocks : 4 * blocks + 4]:
        blocks += 1
    return 4 * blocks


def test_a_dead_replica_is_forgotten():
    router = Router("prefix-affinity", 2, block_size=2)
    router.choose([1, 2, 3, 4], [0, 1])
    assert router.matched(0, [1, 2, 3, 4, 9]) == 4
    router.forget(0)
    assert router.matched(0, [1, 2, 3, 4, 9]) == 0


@given(st.lists(PROMPTS, max_size=60))
def test_memory_is_bounded_and_keeps_heads_before_tails(prompts):
    router = Router("prefix-affinity", 1, block_size=2, memory_blocks=8)
    for prompt in prompts:
        router.choose(prompt, [0])
    assert len(router._sent[0]) <= 8
    if prompts and len(prompts[-1]) >= 2:
        assert router.matched(0, prompts[-1]) == min(len(prompts[-1]) // 2, 8) * 2


def test_of_a_chain_the_tail_is_forgotten_first():
    router = Router("prefix-affinity", 1, block_size=2, memory_blocks=4)
    router.choose([1, 1, 2, 2, 3, 3], [0])
    router.choose([9, 9, 8, 8], [0])
    assert router.matched(0, [1, 1, 2, 2, 3, 3]) == 4


@pytest.mark.parametrize("wrong", [{"policy": "luck"}, {"num_replicas": 0}, {"max_imbalance": float("nan")}])
def test_nonsense_is_refused(wrong):
    values = {"policy": "round-robin", "num_replicas": 2, **wrong}
    with pytest.raises(UsageError):
        Router(values.pop("policy"), values.pop("num_replicas"), **values)
