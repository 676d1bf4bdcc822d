"""`minifer bench gpu`: one command that finds out what a GPU does, and how near minifer comes to it.

    minifer bench gpu                        everything, in less than eight minutes, into tests/gpu_results/
    minifer bench gpu --dry-run              the same code on the stand-in for CuPy, tiny, on a machine without a GPU

It needs nobody to watch it. It goes through phases, each of which may fail without harming the others; after each the
record so far is written as a whole, so that a machine that is taken away leaves what was measured until then.

* `facts`: what CuPy and the driver cost per call, what they refuse (`bench_gpu_facts.py`);
* `kernels`: every kernel against float64 on this GPU (`testing/kernel_specs.py`);
* `ceilings`: reading, copying and products by type (`roofline/cuda.py`);
* a phase for each model: decode from a graph and without, prompts, all with their share of the ceilings, that is the
  points of a roofline (`bench_gpu_model.py`);
* transformers on the same models where it is installed (`bench_gpu_peer.py`);
* the marks: a 1B model from a graph reads at half the measured bandwidth or more; a graph is twice as fast as single
  launches on 135M; prefill reaches half of the 16-bit products' rate.

Everything is in the JSON file; `bench_gpu_table.py` makes the table of `notebooks/RESULTS.md` from such files.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minifer import hub
from minifer.apps import bench_gpu_peer
from minifer.apps.bench_gpu_facts import Bench, array_addition, copy_bytes_per_s, measure_facts, products_by_type
from minifer.apps.bench_gpu_model import measure_model
from minifer.apps.bench_gpu_table import lines
from minifer.apps.testing.gpu_record import default_path, environment, write_record
from minifer.apps.testing.kernel_run import run_on_device
from minifer.apps.testing.kernel_sources import Build
from minifer.apps.testing.kernel_specs import SPECS, make_case
from minifer.apps.view.gpu_figures import draw
from minifer.device import Device, select_device, why_no_gpu
from minifer.errors import DeviceError, MiniferError, UsageError
from minifer.ops.cuda_launch import DTYPES
from minifer.roofline import cuda

SMALL_MODEL, LARGE_MODEL = "random:smollm2-135m", "random:llama-3.2-1b"
LIMIT_S = 420.0
"""A phase that would begin later than this is left out: the whole takes less than eight minutes."""

MARKS = {"decode_of_bandwidth": 0.5, "graph_over_eager": 2.0, "prefill_of_products": 0.5}
"""What must be reached."""


def add_parser(subparsers: Any) -> None:
    """Declare `minifer bench gpu`."""
    parser = subparsers.add_parser("gpu", help="what this GPU does, and how near a model comes")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or strict (a tiny run without a GPU)")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="where the record goes (default tests/gpu_results)"
    )
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16", help="of the models (default bfloat16)")
    parser.add_argument("--model", action="append", metavar="MODEL", help="instead of the two usual ones; repeatable")
    parser.add_argument("--no-peers", action="store_true", help="do not measure transformers")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help=f"begin nothing after {LIMIT_S:.0f} s"
    )
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="draw the rooflines of the models")
    parser.add_argument("--dry-run", action="store_true", help="the same as --device strict")
    parser.add_argument("--json", action="store_true", help="print the record as well")


def run(args: argparse.Namespace) -> int:
    """Go through the phases. The exit status is 1 if one of them failed."""
    if args.dry_run:
        args.device = "strict"
    if args.device != "strict" and not args.device.startswith("cuda"):
        raise UsageError(f"--device {args.device}: this command is about GPUs; use cuda, cuda:N or strict")
    if args.device != "strict" and (reason := why_no_gpu()):
        raise DeviceError(f"there is no GPU to measure: {reason}; --device strict runs the same code on a stand-in")
    device = select_device(args.device)
    job = Job(args, device)
    for name, phase in job.phases():
        job.go_through(name, phase)
    record = job.record
    if args.json:
        print(json.dumps(record, indent=1, default=str))
    else:
        print("\n".join(lines([record])))
    print(f"minifer: the record is in {job.path}", file=sys.stderr)
    if args.figure and draw(record, args.figure):
        print(f"minifer: the rooflines are in {args.figure}", file=sys.stderr)
    return 1 if any("error" in phase for phase in record["phases"].values()) else 0


class Job:
    """One run: its record, and where that is written."""

    def __init__(self, args: argparse.Namespace, device: Device) -> None:
        """Nothing is measured yet."""
        self.args, self.device, self.small = args, device, device.name == "strict"
        self.models = tuple(args.model or (("tiny",) if self.small else (SMALL_MODEL, LARGE_MODEL)))
        self.started = time.monotonic()
        self.record: dict[str, Any] = {"kind": "bench", "environment": environment(), "device": device.name,
                                       "dtype": args.dtype, "models": {}, "peers": {}, "phases": {}}  # fmt: skip
        kept = hub.cache_home() / "bench-gpu-strict.json" if self.small else default_path(self.record["environment"])
        self.path = args.results or kept  # no record of a stand-in belongs among those of GPUs
        self.ceilings = {"bytes_per_s": float("nan"), "flops_per_s": float("nan")}

    def phases(self) -> list[tuple[str, Callable[[], None]]]:
        """All of them in order; the small model comes before what takes long."""
        found: list[tuple[str, Callable[[], None]]] = [
            ("ceilings", self._ceilings),
            ("kernels", self._kernels),
            ("facts", self._facts),
        ]
        found += [(f"model {name}", lambda name=name: self._model(name)) for name in self.models]  # type: ignore[misc]
        if not self.args.no_peers:
            found += [(f"transformers {m}", lambda m=m: self._peer(m)) for m in self.models]  # type: ignore[misc]
        return [*found, ("marks", self._marks)]

    def go_through(self, name: str, phase: Callable[[], None]) -> None:
        """One phase, guarded, timed and written down."""
        start = time.monotonic()
        began = start - self.started
        entry: dict[str, Any] = {"began_s": began}
        self.record["phases"][name] = entry
        if began > self.args.limit and name != "marks":
            entry["error"] = f"not begun: {began:.0f} s had passed of {self.args.limit:.0f}"
        else:
            self._say(name)
            try:
                phase()
            except MiniferError as error:
                entry["error"] = str(error)
            except Exception as error:  # whatever it is, the other phases do not depend on it
                entry["error"] = f"{type(error).__name__}: {error}"[:500]
        entry["seconds"] = time.monotonic() - start
        if "error" in entry:
            self._say(f"{name} failed: {entry['error']}")
        write_record(self.path, self.record)

    def _say(self, what: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {what}", file=sys.stderr, flush=True)

    def _facts(self) -> None:
        self.record["facts"] = measure_facts(Bench(self.device, small=self.small), self._say)

    def _kernels(self) -> None:
        """Every kernel and number type in its first shapes; the tests marked `gpu` try all of them."""
        found = self.record["kernels"] = {}
        for dtype in ("float16",) if self.small else tuple(DTYPES):
            for name, spec in SPECS.items():
                wrong = []
                for shape in spec.shapes[: 1 if self.small else 2]:
                    outcomes = run_on_device(make_case(name, Build(dtype), shape), self.device.xp)
                    wrong += [str(outcome) for outcome in outcomes if not outcome.fine]
                found[f"{name} {dtype}"] = wrong or "right"
        if bad := [name for name, what in found.items() if what != "right"]:
            raise MiniferError(f"wrong results: {', '.join(bad)}")

    def _ceilings(self) -> None:
        measured = self._measured()
        self.record["ceilings"] = measured
        reading = max(measured["read_bytes_per_s"], measured["copy_bytes_per_s"])
        self.ceilings = {"bytes_per_s": reading, "flops_per_s": measured["flops_per_s"][self.args.dtype]}

    def _measured(self) -> dict[str, Any]:
        """With cuBLAS itself where that works, else with plain array code: without ceilings no share can be told."""
        bench, why = Bench(self.device, small=self.small), "the stand-in has no cuBLAS"
        if not self.small:
            try:
                if measured := cuda.measure():
                    return measured
            except Exception as error:  # CuPy's own: a library of NVIDIA's that is not there, say
                why = f"{type(error).__name__}: {error}"[:300]
        copying = copy_bytes_per_s(bench)
        rates = {kind: rate for kind, rate in products_by_type(bench).items() if isinstance(rate, float)}
        rates.setdefault(self.args.dtype, float("nan"))
        return {
            "name": self.device.name, "read_bytes_per_s": copying, "copy_bytes_per_s": copying,
            "launch_s": array_addition(bench)["gpu_us"] / 1e6, "flops_per_s": rates, "instead_of_cublas": why,
        }  # fmt: skip

    def _model(self, name: str) -> None:
        found = measure_model(name, self.device, self.args.dtype, self.ceilings, small=self.small, say=self._say)
        self.record["models"][name] = found
        if failed := [row["job"] for row in found["rows"] if "error" in row]:
            raise MiniferError(f"{name}: failed at {', '.join(failed)}")

    def _peer(self, name: str) -> None:
        reason = "the stand-in has no peers" if self.small else bench_gpu_peer.why_no_peer()
        if reason:
            self.record["peers"][name] = {"left_out": reason}
            return
        self.record["peers"][name] = bench_gpu_peer.measure_apart(
            name, dtype=self.args.dtype, prompts=(512, 2048), generate=32, batches=(1, 8, 32)
        )

    def _marks(self) -> None:
        self.record["marks"] = marks(self.record["models"], self.ceilings)


def marks(models: Mapping[str, Any], ceilings: Mapping[str, float]) -> dict[str, Any]:
    """The three marks: what was reached, what must be, and out of which row. None for what was not measured."""

    def row(model: str, job: str) -> Mapping[str, Any] | None:
        rows = models.get(model, {}).get("rows", ())
        return next((r for r in rows if r["job"] == job and "seconds" in r), None)

    decode, prefill = row(LARGE_MODEL, "decode b1 @ 512, graph"), row(LARGE_MODEL, "prefill 2048")
    graph, eager = (row(SMALL_MODEL, f"decode b1 @ 512, {way}") for way in ("graph", "eager"))
    reached = {
        "decode_of_bandwidth": decode and decode["bytes_per_s"] / ceilings["bytes_per_s"],
        "graph_over_eager": graph and eager and eager["seconds"] / graph["seconds"],
        "prefill_of_products": prefill and prefill["flops_per_s"] / ceilings["flops_per_s"],
    }
    return {name: {"reached": value, "must": MARKS[name]} for name, value in reached.items()}
