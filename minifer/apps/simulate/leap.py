"""Many decode steps taken at once, where nothing can happen between them.

Most steps of a long answer are alike: everybody gets a token, nobody comes, nobody leaves. As long as that is certain,
the scheduler need not be asked each time. `steps_ahead` says for how many steps it is certain, and `leap` leaves the
scheduler exactly as that many single steps would have left it: the same tokens, stamps, block tables, free blocks and
registered prefixes. A test compares the two after thousands of random workloads.

What can happen, and ends a leap before it does: an answer ends, the pool runs out of blocks (somebody would be
preempted), a seat could be given away, a request arrives. What happens within one: sequences grow into new blocks and
full blocks are registered, in the order in which single steps would do it.

This file reaches into the scheduler's state, which nobody else may: it is the price of an hour simulated in a minute.
"""

from minifer.scheduler.base import Scheduler
from minifer.scheduler.request import Request


def steps_ahead(scheduler: Scheduler) -> int:
    """For how many steps to come it is certain that each gives every running request one token, and nothing else."""
    running = scheduler.running
    if not running or scheduler.unborn or scheduler.in_flight is not None:
        return 0
    if scheduler.waiting and len(running) < scheduler.config.max_num_seqs:
        return 0  # somebody may be let in
    ahead = 1 << 62
    for request in running:
        if not request.output_ids or request.remaining != 1 or request.params.n != 1 or request.stop_ids:
            return 0
        # The last token of an answer is given by a step of its own, which also ends it.
        ahead = min(ahead, request.max_tokens - len(request.output_ids) - 1)
    return _within_pool(scheduler, max(ahead, 0))


def _within_pool(scheduler: Scheduler, steps: int) -> int:
    """The most steps, at most `steps`, whose new blocks are all there."""
    pool = scheduler.pool

    def new_blocks(request: Request) -> int:
        return max(0, pool.blocks_for(request.num_computed + steps) - len(request.block_table))

    while steps and sum(map(new_blocks, scheduler.running)) > pool.num_free:
        steps //= 2
    return steps


def leap(scheduler: Scheduler, stamps: list[float], token: int) -> None:
    """Give every running request one `token` at each of `stamps` (seconds), at most `steps_ahead` of them."""
    size, pool = scheduler.pool.block_size, scheduler.pool
    for step, register, order in sorted(_events(scheduler, len(stamps))):
        request = scheduler.running[order]
        if not register:
            request.block_table = pool.grow(request.block_table)
            continue
        known = request.num_computed + step + 1
        request.token_ids.extend([token] * (known - len(request.token_ids)))
        full = known // size
        pool.register(request.block_table, request.chain, request.token_ids, request.num_registered, full)
        request.num_registered = full
    for request in scheduler.running:
        request.num_computed += len(stamps)
        request.token_ids.extend([token] * (request.num_computed + 1 - len(request.token_ids)))
        request.output_ids.extend([token] * len(stamps))
        request.token_times.extend(stamps)
    scheduler.num_steps += len(stamps)


def _events(scheduler: Scheduler, steps: int) -> list[tuple[int, bool, int]]:
    """What happens to blocks: `(step, False for growth and True for registration, place in the order of running)`.

    Sorted, these are in the order of single steps: within a step all growth comes first, when it is planned, and the
    registrations when it is committed.
    """
    size = scheduler.pool.block_size
    found: list[tuple[int, bool, int]] = []
    for order, request in enumerate(scheduler.running):
        first, last = request.num_computed, request.num_computed + steps
        for block in range(first // size, -(-last // size)):
            if block >= len(request.block_table):
                found.append((block * size - first, False, order))
            if first < (block + 1) * size <= last:
                found.append(((block + 1) * size - 1 - first, True, order))
    return found
