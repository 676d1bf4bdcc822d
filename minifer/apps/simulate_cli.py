"""`minifer simulate`: traffic on a virtual clock.

minifer simulate MODEL             a workload on a fleet: latencies, throughput, a trace
minifer simulate capacity MODEL    the highest rate that still keeps an SLO, by policy, replicas, chunk and block
minifer simulate validate MODEL    the simulation beside the same requests run for real on this machine
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minifer.apps import options
from minifer.apps.bench_serve_options import WORKLOAD_NAMES, add_workload_options, workload_of
from minifer.apps.loadgen.point import parse_rates
from minifer.apps.serve.router import POLICIES
from minifer.apps.serve_results import parse_slo, save
from minifer.apps.simulate import report
from minifer.apps.simulate.machine import LINK_LATENCY_S, Machine, datasheet_machine, model_config
from minifer.apps.workloads import Arrival, make_workload
from minifer.errors import UsageError

KINDS = ("capacity", "validate")
PROMPTS = 1000
MOST_REPLICAS = 4096
"""Each has a pool of its own; more than this fill the memory before the first request."""
DEFAULT_MODEL = "smollm2-135m"


def add_parser(subparsers: Any) -> None:
    """Declare `minifer simulate`."""
    parser = subparsers.add_parser("simulate", help="a fleet on a virtual clock")
    parser.add_argument(
        "words",
        metavar="[capacity|validate] [MODEL]",
        nargs="*",
        help="what to do (default: one workload), and a model: a name, a folder, a .gguf file or a config.json",
    )
    _machine_options(parser.add_argument_group("the fleet"))
    _engine_options(parser.add_argument_group("each replica's engine (vLLM's names)"))
    _workload_options(parser)
    out = parser.add_argument_group("what comes out")
    out.add_argument(
        "--slo",
        nargs="+",
        default=["ttft:2000", "tpot:100"],
        metavar="NAME:MS",
        help="promises for goodput and capacity: ttft, tpot, e2el in ms (default ttft:2000 tpot:100)",
    )
    out.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    out.add_argument("--save-result", type=Path, metavar="FILE", help="write the result as JSON")
    out.add_argument("--figure", type=Path, metavar="FILE", help="draw the result (.svg or .png)")
    out.add_argument("--trace", type=Path, metavar="FILE", help="record every step, for `minifer trace` and `xray`")
    search = parser.add_argument_group("capacity only")
    search.add_argument(
        "--target",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="share of requests that have to keep the SLO (default 0.9)",
    )
    search.add_argument(
        "--vary",
        nargs="+",
        metavar="NAME=A,B",
        default=[],
        help="policy=, replicas=, chunk=, block_size=, prefix_caching=on,off (default: all five)",
    )
    search.add_argument("--full", action="store_true", help="all combinations instead of one change at a time")
    options.remember_defaults(parser)


def _machine_options(group: Any) -> None:
    group.add_argument(
        "--machine",
        default="here",
        metavar="NAME",
        help="`here`, as measured (the first time takes a minute), or a name of `roofline --hardware list`",
    )
    group.add_argument("--fresh", action="store_true", help="measure the steps of this machine again")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="how many engines (default 1)")
    group.add_argument("--route", choices=POLICIES, default=POLICIES[0], help=f"default {POLICIES[0]}")
    group.add_argument("--dtype", default="bfloat16", help="of a datasheet machine: bfloat16 (default), q8_0 ...")
    group.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N", help="machines per replica (default 1)"
    )
    group.add_argument(
        "--efficiency",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the datasheet's figures that is reached (default 1: the best case)",
    )
    group.add_argument(
        "--step-overhead-us", type=float, default=0.0, metavar="US", help="added to every step (default 0)"
    )
    group.add_argument(
        "--link-latency-us",
        type=float,
        default=LINK_LATENCY_S * 1e6,
        metavar="US",
        help=f"one hop between neighbours (default {LINK_LATENCY_S * 1e6:g})",
    )


ENGINE = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size", "max_model_len")


def _engine_options(group: Any) -> None:
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="answers in a batch")
    options.add_limit_options(group)


def _workload_options(parser: argparse.ArgumentParser) -> None:
    """Those of `minifer bench serve`, and recorded traffic."""
    group = add_workload_options(parser, num_prompts=PROMPTS, more=("azure",))
    parser.set_defaults(num_prompts=None)  # `capacity` is content with fewer
    group.add_argument("--request-rate", default="inf", metavar="R,R", help="per second, one or several (default inf)")
    group.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="azure: X times as many per second")
    group.add_argument("--limit", type=int, metavar="N", help="azure: only N requests ...")
    group.add_argument("--skip", type=int, default=0, metavar="N", help="azure: ... behind the first N")


def run(args: argparse.Namespace) -> int:
    """Simulate, search or validate, as the first word says."""
    words = list(args.words)
    kind = words.pop(0) if words and words[0] in KINDS else "run"
    if len(words) > 1:
        raise UsageError(f"`minifer simulate` takes one model, not {' and '.join(words)}")
    model = words[0] if words else DEFAULT_MODEL
    args.slo_ms = parse_slo(args.slo, "--slo")
    _check(args, kind)
    return {"run": _run, "capacity": _capacity, "validate": _validate}[kind](args, model)


IGNORED = {
    "run": ("target", "vary", "full"),
    "capacity": ("request_rate", "trace"),
    "validate": (
        *("target", "vary", "full", "request_rate", "trace", "replicas", "route", "burstiness"),
        *(*WORKLOAD_NAMES, "random_range_ratio", "rate_scale", "limit", "skip"),
    ),
}
"""Options that say nothing to a kind of simulation."""


def _check(args: argparse.Namespace, kind: str) -> None:
    """Raise UsageError for what does not fit together, before anything is measured or simulated."""
    options.refuse_unused(args, IGNORED[kind], "`minifer simulate`" if kind == "run" else f"`minifer simulate {kind}`")
    for option in ("step_overhead_us", "link_latency_us"):
        if not 0 <= getattr(args, option) < math.inf:
            raise UsageError(f"--{option.replace('_', '-')} must be at least 0, not {getattr(args, option):g}")
    if args.replicas > MOST_REPLICAS:
        raise UsageError(f"--replicas {args.replicas}: at most {MOST_REPLICAS} fit into one simulation")
    options.check_figure(args.figure)
    options.check_output("--save-result", args.save_result)
    options.check_output("--trace", args.trace)


def machine_of(args: argparse.Namespace, model: str) -> Machine:
    """The machine that the options describe, with its engine's limits; measures this one if it has to."""
    config = model_config(model)
    limits = {name: getattr(args, name) for name in (*ENGINE, "enable_prefix_caching", "enable_chunked_prefill")}
    if args.machine != "here":
        return datasheet_machine(
            args.machine,
            config,
            dtype=args.dtype,
            tensor_parallel=args.tensor_parallel_size,
            efficiency=args.efficiency,
            step_overhead_s=args.step_overhead_us * 1e-6,
            link_latency_s=args.link_latency_us * 1e-6,
            **limits,
        )
    if args.tensor_parallel_size != 1 or args.efficiency != 1.0:
        raise UsageError("--tensor-parallel-size and --efficiency are for a --machine of the table, not for `here`")
    from minifer.apps.simulate.stored import this_machine

    with options.ProgressBars(counts=True) as bars:
        return this_machine(model, config, fresh=args.fresh, progress=bars.update, **limits)


def arrivals_of(args: argparse.Namespace, vocab_size: int, rate: float) -> Iterator[Arrival]:
    """The workload that the options describe, at `rate` requests per second (azure has its own times)."""
    if args.dataset_name == "azure":
        from minifer.apps.simulate.azure import azure_arrivals

        if args.dataset_path is None:
            raise UsageError("--dataset-name azure needs --dataset-path FILE")
        return azure_arrivals(args.dataset_path, rate_scale=args.rate_scale, limit=args.limit, skip=args.skip)
    times = {"seed": args.seed, "request_rate": rate, "burstiness": args.burstiness}
    return iter(make_workload(**workload_of(args), **times, vocab_size=vocab_size))


def _run(args: argparse.Namespace, model: str) -> int:
    rates, args.num_prompts = parse_rates(args.request_rate), PROMPTS if args.num_prompts is None else args.num_prompts
    if len(rates) > 1 and (args.trace is not None or args.dataset_name == "azure"):
        raise UsageError("--trace and --dataset-name azure are for one run, not for a list of rates")
    machine = machine_of(args, model)
    points = [_point(args, machine, model, rate) for rate in rates]
    if len(points) == 1:
        _give(args, points[0], report.print_run)
    else:
        _give(args, {"rows": points}, report.print_rates)
    if args.figure is not None:
        _draw(args, points)
    return 0


def _point(args: argparse.Namespace, machine: Machine, model: str, rate: float) -> dict[str, Any]:
    """One run at one rate."""
    from minifer.apps.simulate.outcome import simulate

    arrivals = arrivals_of(args, machine.model.vocab_size, rate)
    total = 0 if args.dataset_name == "azure" else args.num_prompts
    about = {"model": model, "dataset": args.dataset_name, "seed": args.seed}
    with options.ProgressBars(counts=True) as bars:

        def progress(done: int) -> None:
            if done and done % 100 == 0:
                bars.update("requests answered", done, total)

        found = simulate(
            machine, arrivals, replicas=args.replicas, policy=args.route, slo_ms=args.slo_ms, trace=args.trace,
            about=about, progress=None if args.json else progress,
        )  # fmt: skip
    return {"request_rate": "inf" if math.isinf(rate) else rate, "burstiness": args.burstiness, **found}


def _draw(args: argparse.Namespace, points: list[dict[str, Any]]) -> None:
    from minifer.apps.view import fleet_figures, serving_figures

    if len(points) == 1:
        fleet_figures.draw_run(points[0], args.figure)
    else:
        about = points[0]["simulation"]
        name = f"{about['replicas']} x {about['name']}"
        serving_figures.draw({name: points}, args.figure, f"Simulated: {about['model']} on {name}, {about['policy']}")


def _capacity(args: argparse.Namespace, model: str) -> int:
    from minifer.apps.simulate.search import search

    machine = machine_of(args, model)
    with options.ProgressBars(counts=True) as bars:
        found = search(args, machine, model, arrivals_of, None if args.json else bars.update)
    _give(args, found, report.print_capacity)
    if args.figure is not None:
        from minifer.apps.view.fleet_figures import draw_capacity

        draw_capacity(found, args.figure)
    return 0


def _validate(args: argparse.Namespace, model: str) -> int:
    from minifer.apps.simulate.validate import validate
    from minifer.llm import LLM

    if args.machine != "here":
        raise UsageError(f"only this machine can be validated by running on it, not {args.machine}")
    limits = {name: value for name in ENGINE if (value := getattr(args, name)) is not None}
    with options.ProgressBars(counts=True) as bars, LLM(model, progress=bars.update, **limits) as llm:
        comparisons, time, samples = validate(llm, seed=args.seed, progress=bars.update)
    found = report.validation(model, comparisons, time, samples)
    _give(args, found, report.print_validation)
    if args.figure is not None:
        from minifer.apps.view.fleet_figures import draw_validation

        draw_validation(found, args.figure)
    return 0


def _give(args: argparse.Namespace, found: dict[str, Any], show: Any) -> None:
    """Save, then print as JSON or for people."""
    if args.save_result is not None:
        save(found, args.save_result)
    if args.json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        show(found)
