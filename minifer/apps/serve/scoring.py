"""The log-probability of a prompt: what evaluation harnesses ask a server for (`echo`, `logprobs`, `max_tokens=0`).

A forward pass computes a row of logits for every position, and generating throws all but the last away. Scoring keeps
them: the row at position i says how likely token i + 1 was. So it is no second pass, only more rows of the same one,
and a scored prompt is chunked and batched with everybody else's.

One trap: positions found in the prefix cache are not computed, and have no logits. A scored request therefore gets a
chain of block keys that begins with a random number instead of the common root, and finds nothing but its own blocks.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from minifer.executor import ModelExecutor, batch_of, sampled
from minifer.kv_cache.prefix import BlockKey, digest_of
from minifer.model.transformer import forward
from minifer.sampling import keep_top_k, log_softmax
from minifer.scheduler.plan import ScheduledSeq, StepPlan, StepResult
from minifer.scheduler.request import Request

ROWS_AT_ONCE = 32
"""Rows turned into log-probabilities together: 12 MB of float64 for 49,152 tokens."""

Scores = dict[int, tuple[float, tuple[tuple[int, float], ...]]]
"""Position of a prompt token -> its log-probability and the likeliest tokens at its place."""

_Asked = list[tuple[ScheduledSeq, range]]


class ScoringExecutor(ModelExecutor):
    """A ModelExecutor that also notes the log-probabilities of prompts named in `wanted`."""

    def __init__(self, plain: ModelExecutor) -> None:
        """Take the place of `plain`, on the same weights and cache."""
        super().__init__(plain.weights, plain.store, plain.ops, plain.device)
        self.wanted: dict[str, int] = {}  # request id -> how many of the likeliest tokens
        self.scores: dict[str, Scores] = {}

    def want(self, request: Request, top: int, block_size: int) -> None:
        """Score the prompt of `request`, which has not been added to an engine yet."""
        self.wanted[request.id], self.scores[request.id] = top, {}
        if len(request.prompt_ids) >= block_size:
            root, ids = secrets.token_bytes(32), request.prompt_ids[:block_size]
            request.chain.append(BlockKey(digest_of(root, ids), root, ids))

    def forget(self, request_id: str) -> Scores | None:
        """The scores of a request that is over or has its first token."""
        self.wanted.pop(request_id, None)
        return self.scores.pop(request_id, None)

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:
        """As ModelExecutor does; the rows of scored prompts are asked for too, behind those that are sampled."""
        asked = [(seq, mine) for seq in plan.seqs if (mine := self._rows(seq, requests))]
        if not asked:
            return super().run(plan, requests)
        self.store.copy_blocks(plan.copies)
        batch = batch_of(plan.seqs, self.device)
        starts = {seq.request_id: span.start for seq, span in zip(plan.seqs, batch.spans, strict=True)}
        sampling = [seq for seq in plan.seqs if seq.samples]
        more = [starts[seq.request_id] + row for seq, mine in asked for row in mine]
        rows = np.concatenate([self.device.to_host(batch.logit_rows), np.array(more, dtype=np.int64)])
        batch = replace(batch, logit_rows=self.device.asarray(rows))
        logits = self.device.to_host(forward(self.weights, batch, self.store, self.ops))
        self._note_all(asked, logits[len(sampling) :], requests)
        return StepResult(tuple(sampled(requests[s.request_id], row) for s, row in zip(sampling, logits, strict=False)))

    def _rows(self, seq: ScheduledSeq, requests: Mapping[str, Request]) -> range:
        """The rows of a sequence that say how likely its next prompt token was."""
        if seq.request_id not in self.wanted:
            return range(0)
        return range(max(0, min(seq.context, len(requests[seq.request_id].prompt_ids) - 1) - seq.start))

    def _note_all(self, asked: _Asked, logits: np.ndarray, requests: Mapping[str, Request]) -> None:
        for seq, rows in asked:
            mine, logits = logits[: len(rows)], logits[len(rows) :]
            prompt, scores = requests[seq.request_id].prompt_ids, self.scores[seq.request_id]
            for first in range(0, len(rows), ROWS_AT_ONCE):
                chunk = log_softmax(mine[first : first + ROWS_AT_ONCE])
                for i, row in enumerate(chunk, seq.start + first + 1):
                    scores[i] = float(row[prompt[i]]), likeliest(row, self.wanted[seq.request_id])


def likeliest(logprobs: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most likely tokens of one row `[V]` as `(id, logprob)`, equals in order of their ids.

    >>> likeliest(np.array([-3.0, -0.5, -0.5, -2.0]), 2)
    ((1, -0.5), (2, -0.5))
    """
    if count == 0:
        return ()
    kept = np.flatnonzero(keep_top_k(logprobs, count) > -np.inf)
    order = kept[np.argsort(-logprobs[kept], kind="stable")]
    return tuple((int(i), float(logprobs[i])) for i in order)
