"""Routing policies as plain functions, and the router that asks one.

A policy sees what a router can know at the door: how long the prompt is, and for each living replica how many of the
prompt's first tokens were sent there before and how many requests it has not finished. It gives a place in these
lists. The replica whose turn it is stands first, so among equals the smallest place is fair.

    cheapest    a cached token saves a token of work, an unfinished request costs `PRICE` tokens: add up, take the least

`prefix-affinity` (router.py) follows the longest match until the imbalance passes a limit; `cheapest` has no limit and
no cases, only one currency. Routers of large fleets weigh the same two things.

What a policy can't see here: how long an answer will be. Nobody at the door knows that.
"""

from collections.abc import Callable, Sequence

from minifer.apps.serve.router import Choice, Router
from minifer.errors import UsageError
from minifer.kv_cache.prefix import BlockKey

PRICE = 128.0
"""Tokens that an unfinished request counts for. Dear requests make `cheapest` least-loaded, free ones pure affinity."""

Policy = Callable[[int, Sequence[int], Sequence[float]], int]
"""`policy(length, matched, load)`: tokens of the prompt, and per living replica its matched tokens and its load."""


def cheapest(length: int, matched: Sequence[int], load: Sequence[float], price: float = PRICE) -> int:
    """The place of the replica where the prompt costs least, in tokens: those left to compute, and its load's price.

    Equal costs go to the smaller load, and then to the smaller place.

    >>> cheapest(100, [96, 0], [3, 0], price=20)  # 4 + 60 tokens against 100
    0
    >>> cheapest(100, [96, 0], [6, 0], price=20)  # 4 + 120 against 100
    1
    """
    cost = [length - found + price * unfinished for found, unfinished in zip(matched, load, strict=True)]
    return min(range(len(cost)), key=lambda i: (cost[i], load[i], i))


class PolicyRouter(Router):
    """A router whose choice is made by a policy; its memory of what it sent where is the router's own.

    >>> router = PolicyRouter(cheapest, 2, block_size=2)
    >>> router.choose([1, 2, 3, 4], load=[0, 0])
    Choice(replica=0, reason='cheapest', matched_tokens=0)
    >>> router.choose([1, 2, 3, 4], load=[0, 0])
    Choice(replica=0, reason='cheapest', matched_tokens=4)
    """

    def __init__(self, policy: Policy, num_replicas: int, *, block_size: int = 16) -> None:
        super().__init__("prefix-affinity", num_replicas, block_size=block_size)
        self.function = policy

    def _decide(self, chain: list[BlockKey], length: int, load: Sequence[float], living: list[int]) -> Choice:
        in_turn = sorted(living, key=lambda i: (i - self._last - 1) % self.num_replicas)
        matched = [self._matched(i, chain) for i in in_turn]
        name = getattr(self.function, "__name__", "a policy")
        place = self.function(length, matched, [load[i] for i in in_turn])
        if type(place) is not int or not 0 <= place < len(in_turn):
            raise UsageError(f"{name} should give a place from 0 to {len(in_turn) - 1}, not {place!r}")
        return Choice(in_turn[place], name, matched[place])


def make_router(policy: str | Policy, num_replicas: int, *, block_size: int) -> Router:
    """A router by the name of its policy, or for a function. Raises UsageError for a name that there isn't."""
    if callable(policy):
        return PolicyRouter(policy, num_replicas, block_size=block_size)
    if policy == "cheapest":
        return PolicyRouter(cheapest, num_replicas, block_size=block_size)
    return Router(policy, num_replicas, block_size=block_size)
