"""The model as an executor: a plan goes in, a token for every sequence that was to sample comes out.

The scheduler decided *what* runs; here it is computed. Between the two lies only a translation: the plan's sequences
become one flat batch, the forward pass gives a row of logits for each that samples, and each row is sampled with its
own request's parameters. What goes wrong for one sequence ends that sequence and no other.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from minifer.device import Device
from minifer.errors import NumericsError
from minifer.kv_cache.store import KVStore
from minifer.model.transformer import Room, forward
from minifer.model.weights import Weights
from minifer.ops.batch import Batch, Span
from minifer.sampling import mix64, sample
from minifer.scheduler.plan import ScheduledSeq, SeqResult, StepPlan, StepResult
from minifer.scheduler.request import Request


class ModelExecutor:
    """Runs plans on real weights: an `Executor` (see `scheduler/plan.py`)."""

    def __init__(self, weights: Weights, store: KVStore, ops: Room, device: Device) -> None:
        """`weights` as `ops.prepare` returned them, `store` from `ops.new_store`."""
        self.weights, self.store, self.ops, self.device = weights, store, ops, device

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:
        """Copy the blocks that must be copied, compute every token of the plan, sample where the plan says so."""
        self.store.copy_blocks(plan.copies)
        if not plan.seqs:
            return StepResult()
        asked = [requests[seq.request_id] for seq in plan.seqs if seq.samples]
        if (result := self._by_room("decode", asked, self.weights, plan.seqs, self.store)) is not None:
            return result
        logits = forward(self.weights, batch_of(plan.seqs, self.device), self.store, self.ops)
        if (result := self._by_room("sample", asked, logits)) is not None:
            return result
        rows = self.device.to_host(logits)
        return StepResult(tuple(sampled(request, row) for request, row in zip(asked, rows, strict=True)))

    def _by_room(self, method: str, asked: list[Request], *args: Any) -> StepResult | None:
        """The tokens, if the room offers this method and can choose all of them by itself (see `ops/cuda.py`)."""
        if not hasattr(self.ops, method):
            return None
        draws = [(r.params, sequence_seed(r.params.seed or 0, r.index), len(r.token_ids)) for r in asked]
        chosen = getattr(self.ops, method)(*args, draws)
        return None if chosen is None else StepResult(tuple(map(_reported, asked, chosen)))


def batch_of(seqs: tuple[ScheduledSeq, ...], device: Device) -> Batch:
    """The flat batch of a plan's sequences; logits are wanted only where the plan samples."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for seq in seqs:
        spans.append(Span(len(tokens), len(seq.tokens), seq.context, seq.block_table))
        tokens += seq.tokens
        positions += range(seq.start, seq.context)
        slots += seq.slots
        if seq.samples:
            rows.append(len(tokens) - 1)
    index = partial(_index, device)
    return Batch(index(tokens), index(positions), index(slots), tuple(spans), index(rows))


def _index(device: Device, values: list[int]) -> Any:
    return device.asarray(np.array(values, dtype=np.int64))


def sampled(request: Request, logits: np.ndarray) -> SeqResult:
    """The next token of one request from its row of logits `[V]`, or the error that ends it."""
    seed = sequence_seed(request.params.seed or 0, request.index)
    try:
        chosen = sample(
            logits,
            request.params,
            request.prompt_ids,
            request.output_ids,
            seed=seed,
            position=len(request.token_ids),
        )
    except NumericsError as error:
        return SeqResult(request.id, error=str(error))
    return SeqResult(request.id, chosen.token_id, chosen.logprob, chosen.top)


def _reported(request: Request, chosen: tuple[int, float]) -> SeqResult:
    token, logprob = chosen
    return SeqResult(request.id, token, logprob) if token >= 0 else SeqResult(request.id, error="no usable logits")


def sequence_seed(seed: int, index: int) -> int:
    """The seed of answer `index` of a request: answer 0 uses the request's own, so that n = 1 is no special case."""
    return seed if index == 0 else mix64(seed + index)
