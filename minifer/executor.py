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
        batch = batch_of(plan.seqs, self.device)
        logits = self.device.to_host(forward(self.weights, batch, self.store, self.ops))
        sampling = [seq for seq in plan.seqs if seq.samples]
        return StepResult(tuple(_sampled(requests[s.request_id], row) for s, row in zip(sampling, logits, strict=True)))


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


def _sampled(request: Request, logits: np.ndarray) -> SeqResult:
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


def sequence_seed(seed: int, index: int) -> int:
    """The seed of answer `index` of a request: answer 0 uses the request's own, so that n = 1 is no special case."""
    return seed if index == 0 else mix64(seed + index)
