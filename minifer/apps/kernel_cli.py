"""`minifer kernel`: one GPU kernel at a time, run on this machine's CPU, looked at, and broken.

    minifer kernel list
    minifer kernel show paged_split
    minifer kernel run paged_attention --on cpu --seed 3
    minifer kernel run sample_advance --drop-barrier 8    nobody waits there: in which orders of threads does it show?
    minifer kernel run rms_norm --mutant block_sum_last_barrier
    minifer kernel run rms_norm --source mine/rms_norm.cu

`run` makes fresh inputs, runs the kernel with its threads in a shuffled order (`--seed`, 0 is the natural one) and lays
the result beside NumPy's in float64. The exit status is 1 if a number is wrong. `--on cuda` does the same on a GPU.

Where a lab folder is set (`MINIFER_LAB`, or a file `.minifer-lab` here), a kernel of the same name in its
`ops/kernels/` takes the place of ours, and a line says so.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minifer.apps.testing import kernel_mutants
from minifer.apps.testing.kernel_case import Case, Outcome
from minifer.apps.testing.kernel_cpu import BarrierSite, KernelFault, LaunchReport
from minifer.apps.testing.kernel_run import changed_kernels, run_on_cpu, run_on_device
from minifer.apps.testing.kernel_sources import Build, file_of, kernel_files, kernel_to_file, with_source
from minifer.apps.testing.kernel_specs import SPECS, make_case
from minifer.device import select_device
from minifer.errors import InvariantError, UsageError
from minifer.ops.cuda_launch import DTYPES, signatures

ORDERS_TO_COMPARE = 8


def add_parser(subparsers: Any) -> None:
    """Declare `minifer kernel list`, `show` and `run`."""
    parser = subparsers.add_parser("kernel", help="one GPU kernel, run on this machine's CPU")
    what = parser.add_subparsers(dest="what", required=True, metavar="list | show | run")
    listing = what.add_parser("list", help="the kernels, and what each does")
    listing.add_argument("--json", action="store_true", help="print JSON")
    show = what.add_parser("show", help="the source of a kernel")
    run_one = what.add_parser("run", help="run a kernel and compare it with NumPy")
    for one in (show, run_one):
        one.add_argument("name", metavar="NAME", help="as `minifer kernel list` has it")
        one.add_argument("--source", type=Path, metavar="FILE", help="a .cu file in place of ours of that name")
        one.add_argument("--json", action="store_true", help="print JSON")
    run_one.add_argument("--on", choices=("cpu", "strict", "cuda"), default="cpu", help="(default cpu)")
    run_one.add_argument("--seed", type=int, default=1, metavar="S", help="order of threads; 0: natural (default 1)")
    run_one.add_argument("--dtype", choices=sorted(DTYPES), default="float16", help="(default float16)")
    run_one.add_argument("--head-dim", type=int, default=64, metavar="D", help="numbers in a head (default 64)")
    run_one.add_argument("--group", type=int, default=3, metavar="G", help="query heads per kv head (default 3)")
    run_one.add_argument("--shape", type=int, default=0, metavar="N", help="which of its shapes (default 0)")
    broken = run_one.add_mutually_exclusive_group()
    broken.add_argument("--drop-barrier", type=int, default=0, metavar="N", help="leave out the Nth barrier")
    broken.add_argument("--mutant", metavar="NAME", help="plant a fault of the bank in tests/bugs/phase09")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    if args.what == "list":
        return _list(args.json)
    files, note = _files(args)
    return _show(args, files) if args.what == "show" else _run(args, files, note)


def _list(as_json: bool) -> int:
    files = kernel_files()
    rows = []
    for name, spec in SPECS.items():
        case = make_case(name, Build())
        used = [launch.kernel for launch in case.launches]
        rows.append({"name": name, "kernels": used, "file": file_of(used[0], files), "about": spec.about,
                     "shapes": len(spec.shapes), "by_head": spec.by_head})  # fmt: skip
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(f"{row['name']:<21}{row['file']:<20}{row['about']}")
    return 0


def _show(args: argparse.Namespace, files: dict[str, str]) -> int:
    kernels = [args.name] if args.name not in SPECS else [x.kernel for x in make_case(args.name, Build()).launches]
    names = list(dict.fromkeys(file_of(kernel, files) for kernel in kernels))
    if None in names:
        raise UsageError(f"there is no kernel {args.name!r}: {', '.join(kernel_to_file(files))}")
    texts = {name: files[name] for name in names if name}
    if args.json:
        found = [signatures(text) for text in texts.values()]
        parameters = {k: [p._asdict() for p in ps] for one in found for k, ps in one.items() if k in kernels}
        print(json.dumps({"name": args.name, "files": texts, "parameters": parameters}, indent=2))
        return 0
    print("\n".join(text.rstrip("\n") for text in texts.values()))
    return 0


def _run(args: argparse.Namespace, files: dict[str, str], note: str) -> int:
    case = _case(args)
    if args.mutant:
        mutant = _mutant(args.mutant)
        files, note = mutant.apply(files), f"with the planted fault {mutant.name} in {mutant.file}"
    report = _on_device(args, case, files) if args.on != "cpu" else _on_cpu(args, case, files)
    report |= {"name": args.name, "build": asdict(case.build), "on": args.on, "note": note}
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(_lines(report, case)))
    return 0 if report["right"] else 1


def _case(args: argparse.Namespace) -> Case:
    build = Build(args.dtype, args.head_dim, args.group)
    if args.name not in SPECS:
        make_case(args.name, build)  # says which there are
    if args.seed < 0:
        raise UsageError(f"--seed must be at least 0, not {args.seed}")
    shapes = SPECS[args.name].shapes
    if not 0 <= args.shape < len(shapes):
        raise UsageError(f"--shape {args.shape}: {args.name} has shapes 0 to {len(shapes) - 1}")
    if args.head_dim < 2 or args.head_dim % 2 or args.group < 1 or args.head_dim > 128 or args.group > 16:
        raise UsageError("a head has 2 to 128 numbers, an even count, and a group 1 to 16 heads")
    return make_case(args.name, build, shapes[args.shape], seed=args.seed)


def _files(args: argparse.Namespace) -> tuple[dict[str, str], str]:
    """The kernels' files, with a reader's own in their places, and a line about whose they are."""
    files, notes = kernel_files(), []
    lab = lab_folder()
    for path in sorted((lab / "ops" / "kernels").glob("*.cu*")) if lab else ():
        files[path.name] = path.read_text(encoding="utf-8")
        notes.append(_whose(path))
    if args.source:
        files = with_source(args.source, files)
        notes.append(_whose(args.source))
    return files, "; ".join(notes)


def lab_folder() -> Path | None:
    """The folder whose kernels take the place of ours: `MINIFER_LAB`, or this one if a `.minifer-lab` lies in it."""
    chosen = os.environ.get("MINIFER_LAB") or ("." if Path(".minifer-lab").is_file() else "off")
    return None if chosen == "off" else Path(chosen)


def _whose(path: Path) -> str:
    return f"{path} (SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}) in place of ours"


def _mutant(name: str) -> kernel_mutants.Mutant:
    bank = kernel_mutants.mutants()
    if name not in bank:
        raise UsageError(f"there is no planted fault {name!r}: {', '.join(bank)}")
    return bank[name]


def _on_device(args: argparse.Namespace, case: Case, files: dict[str, str]) -> dict[str, Any]:
    if args.drop_barrier:
        raise UsageError("--drop-barrier needs --on cpu, where the order of threads can be chosen")
    outcomes = run_on_device(case, select_device(args.on).xp, files)
    return {"right": all(o.fine for o in outcomes), "launches": [], "orders": [_order(args.seed, outcomes)]}


def _on_cpu(args: argparse.Namespace, case: Case, files: dict[str, str]) -> dict[str, Any]:
    """One order of threads, or several where something is broken on purpose."""
    kernels = changed_kernels(case, files)
    drop: BarrierSite | None = None
    reports: list[LaunchReport] = []
    if args.drop_barrier:
        _, reports = run_on_cpu(case, kernels=kernels)
        drop = _site(args.drop_barrier, reports)
    several = args.drop_barrier or args.mutant
    orders = []
    for seed in range(ORDERS_TO_COMPARE) if several else (args.seed,):
        try:
            outcomes, met = run_on_cpu(case, seed=seed, kernels=kernels, drop=drop)
            orders.append(_order(seed, outcomes))
            reports = reports or met
        except (KernelFault, InvariantError) as error:
            orders.append({"seed": seed, "right": False, "fault": str(error), "buffers": []})
    launches = [
        asdict(report) | {"kernel": launch.kernel} for launch, report in zip(case.launches, reports, strict=False)
    ]
    dropped = {"number": args.drop_barrier, **asdict(drop)} if drop else None
    return {"right": all(o["right"] for o in orders), "launches": launches, "orders": orders, "dropped": dropped}


def _site(number: int, reports: Sequence[LaunchReport]) -> BarrierSite:
    sites = [site for report in reports for site in report.barriers]
    if not 1 <= number <= len(sites):
        raise UsageError(f"--drop-barrier {number}: this kernel meets {len(sites)} barriers")
    return sites[number - 1]


def _order(seed: int, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    rows = [asdict(o) | {"error": o.error if o.error < float("inf") else "not a number"} for o in outcomes]
    return {"seed": seed, "right": all(o.fine for o in outcomes), "fault": None, "buffers": rows}


def _lines(report: dict[str, Any], case: Case) -> Iterator[str]:
    yield f"{report['name']}, {case.about}; {case.build}"
    if report["note"]:
        yield report["note"]
    number = 0
    for one in report["launches"]:
        threads = one["block"][0] * one["block"][1] * one["block"][2]
        blocks = one["grid"][0] * one["grid"][1] * one["grid"][2]
        grid = " x ".join(map(str, one["grid"]))
        yield f"  {one['kernel']}: grid {grid} = {blocks} blocks of {threads} threads; " + (
            f"{one['warp_operations']:,} shuffles and other meetings of a warp"
        )
        for site in one["barriers"]:
            number += 1
            yield f"    barrier {number}  {site['file']}, line {site['line']}: met by {site['threads']:,} threads"
        if not one["barriers"]:
            yield "    no barrier"
    if report.get("dropped"):
        yield f"  barrier {report['dropped']['number']} left out"
    yield from _results(report["orders"])


def _results(orders: Sequence[dict[str, Any]]) -> Iterator[str]:
    if len(orders) == 1:
        yield f"  {_order_name(orders[0]['seed'])}, beside NumPy in float64:"
        yield from (f"    {_buffer(b)}" for b in orders[0]["buffers"])
        if orders[0]["fault"]:
            yield f"    {orders[0]['fault']}"
        return
    for order in orders:
        wrong = [b for b in order["buffers"] if not b["fine"]]
        what = order["fault"] or ("right" if order["right"] else "; ".join(_buffer(b) for b in wrong))
        yield f"  {_order_name(order['seed'])}: {what}"
    differ = [str(o["seed"]) for o in orders if not o["right"]]
    if not differ:
        yield "  no order of threads made a difference, with this shape (another one: --shape N)"
    elif len(differ) == len(orders):
        yield "  wrong in every order of threads"
    else:
        yield f"  wrong in the orders {', '.join(differ)} only: without shuffling, luck decides whether anybody notices"


def _order_name(seed: int) -> str:
    return f"order {seed} (natural)" if seed == 0 else f"order {seed}"


def _buffer(row: dict[str, Any]) -> str:
    error = row["error"] if isinstance(row["error"], str) else f"{row['error']:.3g}"
    where = f" at [{', '.join(map(str, row['index']))}]" if row["error"] else ""
    return f"{row['buffer']}: largest error {error}{where}, allowed {row['allowed']:.3g}, " + (
        "right" if row["fine"] else "WRONG"
    )
