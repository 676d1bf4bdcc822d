"""The same arrivals for real: an engine with its model, fed at the right moments, for a simulation to be held against.

The loop of a server without its HTTP: who is due is added before the next step, and with nothing to do it sleeps until
somebody is. The arrival is when the request was due, not when the loop had time for it, as the simulation has it.
"""

import time
from collections.abc import Callable, Sequence

from minifer.apps.simulate.fleet import request_of
from minifer.apps.simulate.tally import Tally
from minifer.apps.workloads import Arrival
from minifer.errors import CapacityError, RequestError
from minifer.llm import LLM
from minifer.sampling_params import SamplingParams
from minifer.scheduler.request import Request


def run_real(llm: LLM, arrivals: Sequence[Arrival], progress: Callable[[int], None] | None = None) -> Tally:
    """Serve all arrivals on a real model, in real time. The same figures as `Fleet.run`."""
    engine, clock, tally = llm.engine, llm.clock, Tally(first_arrival=None)
    open_requests: dict[str, Request] = {}
    start, next_up = clock.now(), 0
    tally.first_arrival = start + arrivals[0].at if arrivals else None
    while next_up < len(arrivals) or open_requests:
        while next_up < len(arrivals) and start + arrivals[next_up].at <= clock.now():
            _add(llm, arrivals[next_up], start, open_requests, tally)
            next_up += 1
        if not open_requests:
            if next_up < len(arrivals):
                time.sleep(max(0.0, start + arrivals[next_up].at - clock.now()))
            continue
        for event in engine.step():
            if event.finish_reason:
                tally.note(open_requests.pop(event.request_id))
        if progress is not None:
            progress(len(tally.finished))
    return tally


def _add(llm: LLM, arrival: Arrival, start: float, open_requests: dict[str, Request], tally: Tally) -> None:
    simulated = request_of(arrival)
    params = SamplingParams(max_tokens=arrival.output_len, temperature=0.0, ignore_eos=True, seed=0)
    request = Request(simulated.id, simulated.prompt_ids, params, start + arrival.at)
    try:
        llm.engine.add(request)
    except (CapacityError, RequestError) as error:
        tally.refused.append((arrival.index, str(error)))
    else:
        open_requests[request.id] = request
