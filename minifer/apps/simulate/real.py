"""The same arrivals for real: an engine with its model, fed at the right moments, for a simulation to be held against.

The loop is that of `bench serve` in this process (`loadgen/local.py`): a request's clock starts when it was due and not
when the loop had time for it, as the simulation has it.
"""

from collections.abc import Callable, Sequence

from minifer.apps.loadgen.local import run_local
from minifer.apps.simulate.tally import Tally
from minifer.apps.workloads import Arrival
from minifer.llm import LLM


def run_real(llm: LLM, arrivals: Sequence[Arrival], progress: Callable[[int], None] | None = None) -> Tally:
    """Serve all arrivals on a real model, in real time. The same figures as `Fleet.run`; Ctrl-C ends it."""
    tell = progress or (lambda _: None)
    run = run_local(llm, arrivals, ignore_eos=True, watch=lambda _, done: tell(done))
    if run.interrupted:
        raise KeyboardInterrupt
    tally = Tally(first_arrival=arrivals[0].at if arrivals else None)
    for record in run.records:
        if record.engine is None:
            tally.refused.append((record.index, str(record.error)))
        else:
            tally.add(record.engine, record.due + (record.engine.e2e or 0.0))
    return tally
