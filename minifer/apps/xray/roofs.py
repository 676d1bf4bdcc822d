"""The two ceilings of the machine for the page's roofline, and where they come from.

`minifer roofline` measures them with care and keeps them; where it has run on this machine its figures are taken.
Otherwise two probes of half a second each, which is good enough for a picture: the page says which it was.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from minifer import hub
from minifer.apps import doctor
from minifer.model.cost import num_parameters
from minifer.roofline.ceilings import Machine
from minifer.roofline.probes import measure_ceilings, usable_cores

if TYPE_CHECKING:
    from minifer.llm import LLM

PROBE_S = 0.3
FLOAT32_BYTES = 4


def roofs_of(llm: "LLM") -> dict[str, Any]:
    """`flops_per_s`, `read_bytes_per_s` (at the size of this model's weights), `source`."""
    working_set, threads = FLOAT32_BYTES * num_parameters(llm.config), usable_cores()
    machine = kept()
    if machine is not None:
        try:
            read, flops = machine.read_bytes_per_s(working_set, threads), machine.flops_per_s(threads)
            source = "measured by `minifer roofline` on this machine, and kept"
            return {"flops_per_s": flops, "read_bytes_per_s": read, "source": source}
        except (ValueError, KeyError):
            pass  # measured with another number of threads
    probe = measure_ceilings(working_set, memory_limit_bytes=doctor.memory()["available_bytes"], seconds_each=PROBE_S)
    source = "measured by two quick probes after the run; `minifer roofline` measures with more care"
    return {"flops_per_s": probe.flops_per_s, "read_bytes_per_s": probe.read_bytes_per_s, "source": source}


def kept() -> Machine | None:
    """What `minifer roofline` has kept for this machine, if it has."""
    from minifer.apps.roofline_run import conditions, machine_key

    key = machine_key(conditions())
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    try:
        return Machine(**json.loads((hub.cache_home() / f"ceilings-{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
