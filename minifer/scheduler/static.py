"""Static batching: wait for a batch, run it to its end, take the next one.

This is what a plain loop around a model does, and what continuous batching is measured against. A seat whose answer
is done stays empty until the longest answer of the batch is done too, so a batch costs `seats * max(lengths)` seat
steps where `sum(lengths)` were useful: with exponentially distributed lengths and eight seats, 2.7 times as many (the
harmonic number of 8).

Only the admission differs from continuous.py. A request takes the blocks of its whole life at once, so nothing is
ever preempted; and n answers to one prompt are n requests, since nobody may join a batch that runs.
"""

from bisect import insort

from minifer.scheduler.base import by_rank
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.plan import StepPlan
from minifer.scheduler.request import Request


class StaticScheduler(ContinuousScheduler):
    """The baseline: a closed batch. `seats` counts the places that are paid for, whether or not they work."""

    _closed = False
    _seats = 0

    def add(self, request: Request) -> None:
        """Queue a request and its siblings, or refuse it now if it can never run."""
        super().add(request)
        for sibling in self.unborn.pop(request.id, ()):
            insort(self.waiting, sibling, key=by_rank)

    def step(self, now: float) -> StepPlan:
        """Decide who runs next: whoever is in the batch, or a new batch if nobody is."""
        self._closed = bool(self.running)
        if not self._closed:
            self._seats = 0
        return super().step(now)

    @property
    def seats(self) -> int:
        """The size that the batch had when it was closed."""
        self._seats = max(self._seats, len(self.running))
        return self._seats

    def _why_not(self, request: Request, budget: int, whole: bool) -> tuple[str, tuple[int, ...]]:
        """A closed batch admits no one; an open one takes who has a seat and blocks, also beyond this step's budget."""
        if self._closed:
            return "the batch runs to its end first", ()
        return super()._why_not(request, max(budget, request.remaining), whole)

    def _blocks(self, request: Request) -> tuple[int, int]:
        """Everything it will ever need, at once."""
        life = self.pool.blocks_for(request.num_slots)
        return life, life
