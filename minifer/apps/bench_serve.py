"""`minifer bench serve`: load a server with requests on a schedule, and time its answers.

Options have vLLM's names and meanings; `minifer bench serve --help` lists them. New are several rates in one run
(`--request-rate 0.5,1,2,inf`), `--figure`, and `--backend in-process`, which drives minifer's engine without a server.
Two defaults differ: one warm-up request is sent, which is in no figure, and sampling is greedy.

What is measured, and how the usual mistakes are avoided, is explained in `loadgen/`. Exit status: 1 if any request
failed, 130 after Ctrl-C (the result so far is printed and marked), otherwise 0.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.apps import serve_results as results
from minifer.apps.bench_serve_options import SAMPLING, add_load_options, ask_of, plan_of, server_of, tokenizer_of
from minifer.apps.doctor import conditions
from minifer.apps.loadgen.live import live
from minifer.apps.loadgen.local import run_local
from minifer.apps.loadgen.point import Plan, measure
from minifer.apps.loadgen.run import Run
from minifer.apps.summary import SLO_SERVER
from minifer.errors import MiniferError, UsageError

if TYPE_CHECKING:
    from minifer.llm import LLM

FIGURE = Path("serving.png")
FAILED, INTERRUPTED = 1, 130
OF_A_SERVER = ("base_url", "endpoint", "served_model_name", "send_ids", "header", "extra_body", "tokenizer",
               "request_timeout", *SAMPLING)  # fmt: skip
"""Options that say nothing where no request is put on a wire."""

MeasurePoint = Callable[[Plan, int], tuple[Run, float | None]]


def add_parser(subparsers: Any) -> None:
    """Declare `minifer bench serve`."""
    parser = subparsers.add_parser("serve", help="load any server and time its answers")
    add_load_options(parser)
    group = parser.add_argument_group("result")
    group.add_argument("--goodput", nargs="+", metavar="NAME:MS", help="limits, as ttft:500 tpot:30 e2el:5000")
    group.add_argument("--percentile-metrics", default=",".join(results.METRICS), metavar="NAMES",
                       help="(default %(default)s)")  # fmt: skip
    group.add_argument("--metric-percentiles", default="50,90,95,99", metavar="P,P", help="(default %(default)s)")
    group.add_argument("--save-result", action="store_true", help="write vLLM's JSON, one file for each rate")
    group.add_argument("--save-detailed", action="store_true", help="with every request's lengths, times and text")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="DIR", help="(default: here)")
    group.add_argument("--result-filename", metavar="NAME", help="(default: as vLLM names it)")
    group.add_argument("--label", help="the first part of that name (default: the backend)")
    group.add_argument("--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="goes into the JSON")
    group.add_argument("--figure", type=Path, metavar="PATH",
                       help=f"percentiles against the rate (default {FIGURE}, if there are several rates)")  # fmt: skip
    group.add_argument("--json", action="store_true", help='print {"points": [...], "conditions": {...}}')

    options.remember_defaults(parser)


def run(args: argparse.Namespace) -> int:
    """Measure every rate, print, save, draw. Ctrl-C prints what there is by then, marked as such."""
    check(args)
    report = Report(args)
    try:
        if args.backend == "in-process":
            _measure_local(args, report)
        else:
            asyncio.run(_measure_server(args, report))
    except KeyboardInterrupt:
        report.interrupted = True
    except MiniferError:
        if report.points:  # the server has gone: what it did until then is worth knowing
            report.finish()
        raise
    return report.finish()


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for what would be noticed only after the measurement."""
    known = set(results.METRICS)
    if unknown := [m for m in args.percentile_metrics.split(",") if m not in known]:
        raise UsageError(f"--percentile-metrics {unknown[0]!r}: use some of {', '.join(results.METRICS)}")
    percents_of(args)
    results.parse_slo(args.goodput or [])
    if bad := [word for word in args.metadata if "=" not in word]:
        raise UsageError(f"--metadata {bad[0]!r}: write KEY=VALUE")
    options.check_figure(args.figure)
    if args.result_dir.exists() and not args.result_dir.is_dir():
        raise UsageError(f"--result-dir {args.result_dir} is a file, not a folder")
    if args.backend == "in-process":
        options.refuse_unused(args, OF_A_SERVER, "--backend in-process")


def percents_of(args: argparse.Namespace) -> list[float]:
    """The percentiles asked for. Raises UsageError."""
    try:
        percents = [float(word) for word in args.metric_percentiles.split(",")]
    except ValueError:
        percents = [-1.0]
    if not all(0 <= p <= 100 for p in percents):
        raise UsageError(f"--metric-percentiles {args.metric_percentiles!r}: write numbers from 0 to 100, with commas")
    return percents


async def _measure_server(args: argparse.Namespace, report: "Report") -> None:
    server = server_of(args)
    await server.wait_until_ready(args.ready_check_timeout_sec)
    model = args.model or (await server.models())[0]
    plan, ask = plan_of(args, tokenizer_of(args, model)), ask_of(args, args.served_model_name or model)
    report.about = {"model_id": model, "base_url": f"http://{server.address.authority}"}
    for point, rate in enumerate(plan.rates):
        arrivals = plan.arrivals(point)
        with live(f"rate {rate:g}", len(arrivals), hidden=args.disable_tqdm) as watch:
            run, hits = await measure(server, ask, arrivals, warmups=plan.warmups(point), watch=watch,
                                      max_concurrency=plan.max_concurrency)  # fmt: skip
        report.add(plan, point, run, hits)
        if run.interrupted:
            raise KeyboardInterrupt


def _measure_local(args: argparse.Namespace, report: "Report") -> None:
    from minifer.llm import LLM

    name = args.model or "smollm2-135m"
    with options.ProgressBars() as bars:
        llm = LLM(name, progress=bars.update)
    report.about = {"model_id": llm.name, "base_url": None}
    with llm:
        plan = plan_of(args, llm.tokenizer, llm.vocab_size)
        for point, rate in enumerate(plan.rates):
            _local_point(llm, args, report, plan, point, f"rate {rate:g}")


def _local_point(llm: "LLM", args: argparse.Namespace, report: "Report", plan: Plan, point: int, what: str) -> None:
    sampling = {"ignore_eos": args.ignore_eos, "temperature": args.temperature or 0.0}
    run_local(llm, plan.warmups(point), **sampling)
    arrivals = plan.arrivals(point)
    with live(what, len(arrivals), hidden=args.disable_tqdm) as watch:
        run = run_local(llm, arrivals, **sampling, max_concurrency=plan.max_concurrency, watch=watch)
    report.add(plan, point, run, None)
    if run.interrupted:
        raise KeyboardInterrupt


class Report:
    """The points measured so far, and what becomes of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.points, self.about = args, list[dict[str, Any]](), dict[str, Any]()
        self.interrupted = False
        self.conditions = conditions() | {"client": "minifer bench serve"}

    def add(self, plan: Plan, point: int, run: Run, cache_hits: float | None) -> None:
        """Turn a run into numbers, and save them at once."""
        args = self.args
        about = {
            "date": results.date_now(),
            "endpoint_type": args.backend,
            "backend": args.backend,
            "label": args.label or args.backend,
            "tokenizer_id": args.tokenizer or self.about["model_id"],
            **self.about,
            "dataset_name": args.dataset_name,
            "seed": plan.seed,
            **dict(word.split("=", 1) for word in args.metadata),
        }
        result = results.vllm_json(
            run,
            request_rate=plan.rates[point],
            burstiness=plan.burstiness,
            max_concurrency=plan.max_concurrency,
            metrics=args.percentile_metrics.split(","),
            percents=percents_of(args),
            slo_ms=results.parse_slo(args.goodput) if args.goodput else SLO_SERVER,
            detailed=args.save_detailed,
            cache_hits=cache_hits,
            about=about,
        )
        self.points.append(result)
        if args.save_result or args.save_detailed:
            results.save(result | {"conditions": self.conditions}, self._path(result, len(plan.rates) > 1))

    def _path(self, result: dict[str, Any], many: bool) -> Path:
        name = self.args.result_filename
        if name is None:
            return self.args.result_dir / results.result_name(result)
        path = Path(name)
        return self.args.result_dir / (f"{path.stem}-{result['request_rate']}qps{path.suffix}" if many else path)

    def finish(self) -> int:
        """Print and draw; the exit status."""
        from minifer.apps.view.serving_figures import draw

        status = FAILED if any(p["failed"] for p in self.points) else 0
        if self.interrupted:
            status = INTERRUPTED
        if not self.points:
            print("stopped before anything was measured")
            return status
        path = self.args.figure or (FIGURE if len(self.points) > 1 else None)
        caption = f"{self.about['model_id']}, {self.args.backend}, {self.points[0]['num_prompts']} requests a point"
        figure = draw({self.args.label or self.args.backend: self.points}, path, caption) if path else None
        if self.args.json:
            found = {"points": self.points, "conditions": self.conditions, "figure": str(figure) if figure else None}
            print(json.dumps(found, indent=2, default=str))
        else:
            self._print(figure)
        return status

    def _print(self, figure: Path | None) -> None:
        """What is wrong comes first."""
        for line in remarks(self.points):
            print(line)
        results.print_table([("", point) for point in self.points])
        first = self.points[0]
        slo = ", ".join(f"{name} {limit:g} ms" for name, limit in first["goodput_slo_ms"].items())
        print(f"\nTimes in milliseconds; ITL is the gap between {first['itl_of']}s, percentiles interpolate linearly. "
              f"Goodput: requests per second within {slo}.")  # fmt: skip
        if figure:
            print(f"figure: {figure}")


def remarks(points: Sequence[dict[str, Any]]) -> list[str]:
    """The warnings of all points, each with its rate if there are several."""
    many = len(points) > 1
    return [(f"rate {results.rate_word(p)}: " if many else "") + words for p in points for words in p["warnings"]]
