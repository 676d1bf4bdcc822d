"""The two ceilings of the machine for the page's roofline, and where they come from.

`minifer roofline` measures them with care and keeps them; where it has run on this machine its figures are taken.
Otherwise two probes of half a second each, which is good enough for a picture: the page says which it was.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minifer import hub
from minifer.apps import doctor
from minifer.apps.roofline_elsewhere import config_at
from minifer.errors import MiniferError, UsageError
from minifer.model.config import ModelConfig
from minifer.model.cost import Work, num_parameters, step_cost
from minifer.roofline import ceilings
from minifer.roofline.ceilings import Machine
from minifer.roofline.predict import BYTES, datasheet_roof
from minifer.roofline.probes import measure_ceilings, usable_cores

if TYPE_CHECKING:
    from minifer.llm import LLM

PROBE_S = 0.3
KEPT = "measured by `minifer roofline` on this machine, and kept"
BUNDLED = "tiny"
SIMULATED_DTYPE = "bfloat16"
"""What a simulated machine computes in where its trace does not say."""
FLOAT32_BYTES = 4


def roofs_of(llm: "LLM") -> dict[str, Any] | None:
    """`flops_per_s`, `read_bytes_per_s` (at the size of this model's weights), `source`; None for a GPU that
    `minifer roofline` has not measured yet."""
    working_set, threads = FLOAT32_BYTES * num_parameters(llm.config), usable_cores()
    machine = kept()
    if llm.device.name != "cpu":
        gpu = machine.cuda if machine is not None else None
        return None if gpu is None else {"flops_per_s": gpu["flops_per_s"]["float32"],
                                         "read_bytes_per_s": gpu["read_bytes_per_s"], "source": KEPT}  # fmt: skip
    if machine is not None:
        try:
            read, flops = machine.read_bytes_per_s(working_set, threads), machine.flops_per_s(threads)
            return {"flops_per_s": flops, "read_bytes_per_s": read, "source": KEPT}
        except (ValueError, KeyError):
            pass  # measured with another number of threads
    probe = measure_ceilings(working_set, memory_limit_bytes=doctor.memory()["available_bytes"], seconds_each=PROBE_S)
    source = "measured by two quick probes after the run; `minifer roofline` measures with more care"
    return {"flops_per_s": probe.flops_per_s, "read_bytes_per_s": probe.read_bytes_per_s, "source": source}


def roofs_for(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The kept ceilings for a recorded trace, if it names its model and was recorded on a processor like this one."""
    about = records[0]["about"]
    if about.get("simulated"):
        return simulated_roofs(about)
    machine = kept()
    config = config_here(about.get("model"))
    if machine is None or config is None or about.get("cpu") != doctor.cpu()["name"]:
        return None
    threads = about.get("usable_cores")
    try:
        read = machine.read_bytes_per_s(FLOAT32_BYTES * num_parameters(config), threads)
        flops = machine.flops_per_s(threads)
    except (ValueError, KeyError):
        return None
    source = "measured by `minifer roofline` on this machine, which has the processor that the trace names"
    return {"flops_per_s": flops, "read_bytes_per_s": read, "source": source}


def simulated_roofs(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """The datasheet's ceilings for a machine that was simulated."""
    try:
        roof = datasheet_roof(str(about.get("machine")), str(about.get("dtype", SIMULATED_DTYPE)))
    except UsageError:
        return None
    source = f"from the datasheet of {roof.name}; the run was simulated"
    return {"flops_per_s": roof.flops_per_s, "read_bytes_per_s": roof.read_bytes_per_s, "source": source}


def add_work(records: Sequence[dict[str, Any]]) -> None:
    """Fill in the work of each step where a trace lacks it and its model is one whose configuration is at hand. FLOPs
    and bytes follow from the plan; times of single operations do not, and stay unknown."""
    config = config_here(records[0]["about"].get("model"))
    if config is None:
        return
    about = records[0]["about"]
    width = (
        BYTES.get(str(about.get("dtype", SIMULATED_DTYPE)), FLOAT32_BYTES) if about.get("simulated") else FLOAT32_BYTES
    )
    sizes: dict[str, Any] = {"weight_bytes": width, "activation_bytes": 2 if about.get("simulated") else FLOAT32_BYTES}
    for record in records:
        if record["kind"] == "step" and "ops" not in record:
            seqs = record["seqs"]
            work = [Work(count, first + count) for _, _, first, count, _ in seqs]
            costs = step_cost(config, work, num_logits=sum(samples for *_, samples in seqs), **sizes)
            record["ops"] = {name: [cost.flops, cost.bytes, None] for name, cost in costs.items()}


def config_here(model: Any) -> ModelConfig | None:
    """The configuration of a model that is on this machine already. A trace is not to choose what is fetched, or
    which other files are read."""
    try:
        known = isinstance(model, str) and (model in (BUNDLED, *hub.KNOWN) or model.startswith("random:"))
        return config_at(str(model)) if known else None
    except (MiniferError, OSError, ValueError):
        return None


def kept() -> Machine | None:
    """What `minifer roofline` has kept for this machine, if it has."""
    from minifer.apps.roofline_run import conditions, machine_key

    return ceilings.kept(machine_key(conditions()))
