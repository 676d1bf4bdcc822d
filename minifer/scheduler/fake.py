"""An executor without a model, made to notice every mistake in the bookkeeping.

It keeps token ids where a model keeps keys and values: in the *physical slots* that the plan names. The next token is
a hash of all ids read back through the block table, from position 0 on. So a wrong slot, a block that was recycled too
early, a prefix that is not the same or a copy that was forgotten changes the answer, and nothing depends on rounding:
whatever the batch, the chunks and the preemptions were, the answer must equal `fake_tokens`, which has no cache at all.
"""

from collections.abc import Mapping, Sequence

from minifer.errors import InvariantError
from minifer.scheduler.plan import ScheduledSeq, SeqResult, StepPlan, StepResult
from minifer.scheduler.request import Request

_PRIME = (1 << 61) - 1


def fake_next(token_ids: Sequence[int], salt: int, vocab_size: int) -> int:
    """The token that the fake model puts behind `token_ids`: a polynomial hash, so that every place counts."""
    value = salt + 1
    for token in token_ids:
        value = (value * 1_000_003 + token + 1) % _PRIME
    return (value >> 7) % vocab_size


def fake_salt(request: Request) -> int:
    """What makes two answers to one prompt differ: the request's seed and the number of the answer."""
    return 31 * ((getattr(request.params, "seed", None) or 0) + 1) + request.index


def fake_tokens(prompt_ids: Sequence[int], count: int, salt: int = 31, vocab_size: int = 1000) -> list[int]:
    """The oracle: `count` tokens behind a prompt, without a cache, a block or a batch.

    >>> first, *rest = fake_tokens([1, 2, 3], 4)
    >>> rest == fake_tokens([1, 2, 3, first], 3)
    True
    """
    known = list(prompt_ids)
    for _ in range(count):
        known.append(fake_next(known, salt, vocab_size))
    return known[len(prompt_ids) :]


class FakeExecutor:
    """Runs plans on a list of slots; `None` is a slot that was never written."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 1000) -> None:
        self.block_size, self.vocab_size = block_size, vocab_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:
        """Copy blocks, write the tokens of all sequences, then read back and answer."""
        size = self.block_size
        for source, target in plan.copies:
            self.slots[target * size : (target + 1) * size] = self.slots[source * size : (source + 1) * size]
        for seq in plan.seqs:
            for slot, token in zip(seq.slots, seq.tokens, strict=True):
                self.slots[slot] = token
        return StepResult(tuple(self._answer(seq, requests) for seq in plan.seqs if seq.samples))

    def _answer(self, seq: ScheduledSeq, requests: Mapping[str, Request]) -> SeqResult:
        salt = fake_salt(requests[seq.request_id])
        return SeqResult(seq.request_id, fake_next(self.read(seq), salt, self.vocab_size), 0.0)

    def read(self, seq: ScheduledSeq) -> list[int]:
        """The ids that a sequence sees, read through its block table. Raises InvariantError for an empty slot."""
        found: list[int] = []
        for block in seq.block_table:
            found += self.slots[block * self.block_size : (block + 1) * self.block_size]  # type: ignore[arg-type]
        del found[seq.context :]
        if None in found or len(found) < seq.context:
            raise InvariantError(f"{seq.request_id} reads a slot that was never written")
        return found
