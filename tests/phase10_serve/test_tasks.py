"""The lab tasks of phase 10: a routing decision, an event on the wire, and when requests come."""

import itertools
import json
import math
import statistics

import pytest

from minifer.apps.serve.router import Router
from minifer.apps.workloads import arrival_times
from minifer.errors import UsageError


@pytest.mark.task("10.1")
def test_turns_and_loads():
    """Round-robin passes over the dead; least-loaded takes equals in turn."""
    turns = Router("round-robin", 3)
    alive = [True, False, True]
    assert [turns.choose([1], [9, 0, 0], alive).replica for _ in range(4)] == [0, 2, 0, 2]
    least = Router("least-loaded", 3)
    assert [least.choose([1], load).replica for load in ([2, 1, 3], [1, 1, 1], [0, 0, 5], [0, 4, 0])] == [1, 2, 0, 2]


@pytest.mark.task("10.1")
def test_affinity_follows_the_longest_match(rng):
    """A prompt goes where its beginning went, in whole blocks; without a match to the idlest."""
    router = Router("prefix-affinity", 3, block_size=2)
    ids = rng.integers(0, 900, 8).tolist()
    assert router.choose(ids[:4], [0, 0, 0]).replica == 0
    assert router.choose([901, 902], [1, 0, 1]).replica == 1
    hit = router.choose([*ids[:4], 903, 904], [2, 2, 1])
    assert (hit.replica, hit.matched_tokens) == (0, 4)
    assert "4 of 6" in hit.reason
    assert router.choose([905, 906], [1, 1, 0]).matched_tokens == 0


@pytest.mark.task("10.1")
def test_affinity_has_its_price():
    """Four requests more than the idlest are worth a hit, five are not; among equal matches the smaller load."""
    router = Router("prefix-affinity", 2, block_size=2, max_imbalance=4)
    router.choose([1, 2, 3, 4], [0, 9])
    assert router.choose([1, 2, 3, 4], [4, 0]).replica == 0
    far = router.choose([1, 2, 3, 4], [5, 0])
    assert (far.replica, far.matched_tokens) == (1, 0)
    assert far.reason.startswith("least loaded: 0")
    assert router.choose([1, 2, 3, 4], [3, 2]).replica == 1
    assert router.choose([1, 2, 3, 4], [2, 3]).replica == 0


@pytest.mark.task("10.2")
def test_an_event_on_the_wire(rng):
    """`data: `, one line of JSON in UTF-8, a blank line."""
    from minifer.apps.serve.reply import sse

    for value in ({"text": "é 👍", "n": int(rng.integers(9))}, [1, None], "a"):
        event = sse(value)
        assert isinstance(event, bytes)
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert json.loads(event[6:-2]) == value


@pytest.mark.task("10.2")
def test_line_ends_stay_inside_an_event():
    """A text with line ends is still one line, and two events are two."""
    from minifer.apps.serve.reply import sse

    stream = sse({"text": "a\n\ndata: b\r"}) + sse({"text": "c"})
    events = [json.loads(part[6:]) for part in stream.decode().split("\n\n") if part]
    assert events == [{"text": "a\n\ndata: b\r"}, {"text": "c"}]


@pytest.mark.task("10.3")
def test_arrivals_have_rate_and_burstiness(rng):
    """Mean and spread of many gaps, within four standard errors; and the first is at 0."""
    seed, n = int(rng.integers(1000)), 4000
    for rate, burstiness in ((2.0, 1.0), (5.0, 0.25), (0.5, 4.0)):
        times = arrival_times(n, rate, burstiness, seed)
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert (times[0], len(times)) == (0.0, n)
        assert min(gaps) >= 0
        spread = 1 / rate / math.sqrt(burstiness)
        assert abs(statistics.mean(gaps) - 1 / rate) < 5 * spread / math.sqrt(n)
        assert 0.75 < statistics.stdev(gaps) / spread < 1.3


@pytest.mark.task("10.3")
def test_arrivals_repeat_and_stretch(rng):
    """One seed, one pattern: another rate stretches it, another seed is another."""
    seed = int(rng.integers(1000))
    one = arrival_times(9, 1.0, seed=seed)
    assert one == arrival_times(9, 1.0, seed=seed) != arrival_times(9, 1.0, seed=seed + 1)
    assert arrival_times(9, 2.0, seed=seed) == [at / 2 for at in one]


@pytest.mark.task("10.3")
def test_arrivals_at_their_limits():
    """All at once, like a metronome, none at all; and what makes no sense."""
    assert arrival_times(3, math.inf) == [0.0, 0.0, 0.0]
    assert arrival_times(4, 2.0, burstiness=math.inf) == [0.0, 0.5, 1.0, 1.5]
    assert arrival_times(0, 1.0) == []
    assert arrival_times(1, 1.0) == [0.0]
    for n, rate, burstiness in ((3, 0.0, 1.0), (3, math.nan, 1.0), (3, 1.0, -1.0), (-1, 1.0, 1.0)):
        with pytest.raises(UsageError):
            arrival_times(n, rate, burstiness)
