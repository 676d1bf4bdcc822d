"""`minifer bench compare NAME=URL NAME=URL ...`: several servers, one workload, one client, taking turns.

    minifer bench compare --rate 0.5,1,inf minifer=http://127.0.0.1:8001 vllm=http://127.0.0.1:8002 \\
        --start "minifer=minifer serve smollm2-135m --port 8001" --pid vllm=4711

A comparison is fair if only the servers differ. All are sent the same seeded prompts at the same times by the client of
`bench serve`, with greedy sampling and answers of full length. They take turns at each rate, in an order that reverses
from rate to rate, so that a machine that slows down or warms up favours nobody; outside its turn a server stands still
(`compare_peers.py`). Afterwards it is checked that all did the same work (`compare_same.py`).

The folder `--result-dir` holds the figure, a page with the conditions, vLLM's JSON of every turn, and the logs.
Exit status: 1 if a request failed or a server did other work, 130 after Ctrl-C (with what there is by then).
"""

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from minifer.apps import serve_results as results
from minifer.apps.bench_serve_options import (
    STARTING_S,
    add_request_options,
    add_workload_options,
    ask_of,
    plan_of,
    server_of,
    tokenizer_of,
)
from minifer.apps.compare_page import page, ratios, remarks
from minifer.apps.compare_peers import Peer, describe, standing
from minifer.apps.compare_same import Same, same_work
from minifer.apps.doctor import conditions
from minifer.apps.loadgen.live import live
from minifer.apps.loadgen.point import Plan, measure
from minifer.apps.loadgen.protocols import APIS
from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.run import Run
from minifer.apps.summary import SLO_SERVER
from minifer.errors import MiniferError, UsageError
from minifer.formats.atomic import atomic_file

FEWEST_PROMPTS = 100
FAILED, INTERRUPTED = 1, 130


def add_parser(subparsers: Any) -> None:
    """Declare `minifer bench compare`."""
    parser = subparsers.add_parser("compare", help="several servers, one workload, one client")
    parser.add_argument("servers", nargs="+", metavar="NAME=URL", help="what to call it, and where it is")
    parser.add_argument("--rate", "--request-rate", dest="request_rate", default="0.5,1,2,inf", metavar="R,R",
                        help="requests per second (default 0.5,1,2,inf)")  # fmt: skip
    group = parser.add_argument_group("servers")
    group.add_argument("--backend", action="append", default=[], metavar="NAME=API",
                       help=f"{', '.join(APIS)} (default openai; ollama for a server of that name)")  # fmt: skip
    group.add_argument("--model", action="append", default=[], metavar="NAME=MODEL", help="(default: the first listed)")
    group.add_argument(
        "--start", action="append", default=[], metavar="NAME=COMMAND", help="start it with this command"
    )
    group.add_argument("--restart", action="store_true", help="start and end those anew for every turn")
    group.add_argument("--pid", action="append", default=[], metavar="NAME=PID", help="stop this process between turns")
    add_request_options(parser)
    add_workload_options(parser, num_prompts=FEWEST_PROMPTS, input_len=256, output_len=64)
    parser.set_defaults(ignore_eos=True, ready_check_timeout_sec=STARTING_S)
    group = parser.add_argument_group("result")
    group.add_argument("--goodput", nargs="+", metavar="NAME:MS", help="limits, as ttft:500 tpot:30")
    group.add_argument("--result-dir", type=Path, default=Path("compare"), metavar="DIR", help="(default compare)")
    group.add_argument("--json", action="store_true", help="print everything as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure in turns, print, write the page. Ctrl-C does the last two with what there is."""
    peers = peers_of(args)
    results.parse_slo(args.goodput or [])
    args.result_dir.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(args, peers)
    try:
        with standing(peers):
            asyncio.run(comparison.measure())
    except KeyboardInterrupt:
        comparison.interrupted = True
    except MiniferError:
        if any(comparison.points.values()):  # a server has gone: what was measured until then is worth knowing
            comparison.interrupted = True
            comparison.finish()
        raise
    return comparison.finish()


def peers_of(args: argparse.Namespace) -> list[Peer]:
    """The servers of a command line. Raises UsageError."""
    urls = _named("NAME=URL", args.servers)
    options = {name: _named(f"--{name}", getattr(args, name)) for name in ("backend", "model", "start", "pid")}
    for option, found in options.items():
        if unknown := [name for name in found if name not in urls]:
            raise UsageError(f"--{option} {unknown[0]}=...: no server is called that; there are {', '.join(urls)}")
    if both := [name for name in options["pid"] if name in options["start"]]:
        raise UsageError(f"{both[0]} has both --pid and --start: it is started here or it is not")
    peers = []
    for name, url in urls.items():
        backend = options["backend"].get(name, "ollama" if name == "ollama" else "openai")
        if backend not in APIS:
            raise UsageError(f"--backend {name}={backend}: use one of {', '.join(APIS)}")
        pid, command = options["pid"].get(name), options["start"].get(name)
        if pid is not None and not pid.isdecimal():
            raise UsageError(f"--pid {name}={pid}: give the number of a process")
        log = args.result_dir / f"{name}.log" if command is not None else None
        server = server_of(args, url, backend)
        peers.append(Peer(name, server, options["model"].get(name), int(pid) if pid else None, command, log,
                          args.restart))  # fmt: skip
    return peers


def _named(option: str, words: Sequence[str]) -> dict[str, str]:
    """`["a=x", "b=y"]` as a dictionary. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value or not name or "/" in name:
            raise UsageError(f"{option} {word!r}: write NAME=VALUE")
        if name in found:
            raise UsageError(f"{option} {word!r}: {name} is there twice")
        found[name] = value
    return found


class Comparison:
    """What is measured turn by turn, and what becomes of it."""

    def __init__(self, args: argparse.Namespace, peers: list[Peer]) -> None:
        self.args, self.peers, self.interrupted = args, peers, False
        self.points: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in peers}
        self.same: dict[str, list[Same]] = {}
        self.turns: list[dict[str, Any]] = []
        self.conditions = {name: value for name, value in conditions().items() if name != "dtype"}  # of this process

    async def measure(self) -> None:
        """All rates; at each of them every server, in an order that reverses from rate to rate."""
        plan: Plan | None = None
        for point, order in enumerate(self._orders()):
            answers: dict[str, list[Record]] = {}
            for peer in order:
                if sys.stderr.isatty():
                    print(f"waiting for {peer.name}", file=sys.stderr)
                try:
                    await peer.begin_turn(self.args.ready_check_timeout_sec)
                    peer.about = peer.about or await describe(peer)
                    plan = plan or plan_of(self.args, tokenizer_of(self.args, peer.about["model"]))
                    answers[peer.name] = (await self._turn(peer, plan, point)).records
                finally:
                    peer.end_turn()
            assert plan is not None
            by_name = {peer.name: answers[peer.name] for peer in self.peers}
            self.same[_word(plan.rates[point])] = same_work(by_name)

    def _orders(self) -> list[list[Peer]]:
        count = len(self.args.request_rate.split(","))
        return [self.peers if i % 2 == 0 else self.peers[::-1] for i in range(count)]

    async def _turn(self, peer: Peer, plan: Plan, point: int) -> Run:
        arrivals, rate = plan.arrivals(point), plan.rates[point]
        turn = {"started": datetime.now().isoformat(timespec="seconds"), "rate": _word(rate), "server": peer.name,
                "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None}  # fmt: skip
        with live(f"{peer.name}, rate {rate:g}", len(arrivals), hidden=self.args.disable_tqdm) as watch:
            found, hits = await measure(peer.server, ask_of(self.args, peer.about["model"]), arrivals, watch=watch,
                                        warmups=plan.warmups(point), max_concurrency=plan.max_concurrency)  # fmt: skip
        self.turns.append(turn | {"duration": found.duration})
        result = results.vllm_json(
            found,
            request_rate=rate,
            burstiness=plan.burstiness,
            max_concurrency=plan.max_concurrency,
            slo_ms=results.parse_slo(self.args.goodput) if self.args.goodput else SLO_SERVER,
            detailed=True,
            cache_hits=hits,
            about=self._about(peer, plan),
        )
        results.save(result, self.args.result_dir / f"{peer.name}-{_word(rate)}qps.json")
        self.points[peer.name].append({k: v for k, v in result.items() if k not in DETAILS})
        if found.interrupted:
            raise KeyboardInterrupt
        return found

    def _about(self, peer: Peer, plan: Plan) -> dict[str, Any]:
        return {"date": results.date_now(), "endpoint_type": peer.server.api.name, "backend": peer.server.api.name,
                "label": peer.name, "model_id": peer.about["model"], "tokenizer_id": self.args.tokenizer,
                "dataset_name": self.args.dataset_name, "seed": plan.seed}  # fmt: skip

    def finish(self) -> int:
        """Print, draw, write the page; the exit status."""
        from minifer.apps.view.serving_figures import draw

        measured = {name: points for name, points in self.points.items() if points}
        if not measured:
            print("stopped before anything was measured")
            return INTERRUPTED
        found, folder = self._conditions(), self.args.result_dir
        figure = draw(measured, folder / "compare.png", found["workload"])
        text = page(measured, self.same, found, figure.name if figure else None)
        with atomic_file(folder / "compare.md") as file:
            file.write(text.encode())
        checks = {rate: [s.as_dict() for s in checks] for rate, checks in self.same.items()}
        whole = {"points": measured, "ratios": ratios(measured), "same_work": checks, "conditions": found}
        results.save(whole, folder / "compare.json")
        if self.args.json:
            print(json.dumps(whole, indent=2, default=str))
        else:
            self._print(measured)
        return self._status(measured)

    def _status(self, measured: dict[str, list[dict[str, Any]]]) -> int:
        failed = any(p["failed"] for points in measured.values() for p in points)
        unlike = any(check.faults for checks in self.same.values() for check in checks)
        return INTERRUPTED if self.interrupted else FAILED if failed or unlike else 0

    def _print(self, measured: dict[str, list[dict[str, Any]]]) -> None:
        for line in remarks(measured, self.same):
            print(line)
        rates = list(dict.fromkeys(results.rate_word(p) for points in measured.values() for p in points))
        rows = [(name, p) for rate in rates for name, points in measured.items() for p in points
                if results.rate_word(p) == rate]  # fmt: skip
        results.print_table(rows, names="server")
        for rate, checks in self.same.items():
            for s in checks:
                share = "-" if s.median_agreement is None else f"{s.median_agreement:.0%}"
                print(f"rate {rate}: {s.server} and {s.against}: {s.equal_output_tokens} of {s.compared} answers with "
                      f"equally many tokens, {s.equal_texts} equal texts, median agreement {share}")  # fmt: skip
        print(f"page, figure and JSON: {self.args.result_dir}")

    def _conditions(self) -> dict[str, Any]:
        args = self.args
        sizes = (f"{args.random_input_len} tokens in, {args.random_output_len} out"
                 if args.dataset_name == "random" else str(args.dataset_path or ""))  # fmt: skip
        return self.conditions | {
            "workload": f"{args.dataset_name}, {sizes}, {args.num_prompts} requests a point, seed {args.seed}, "
            f"burstiness {args.burstiness:g}, temperature {args.temperature:g}",
            "warm-up requests before each turn": args.num_warmups,
            "order": "the servers take turns at each rate, in an order that reverses from rate to rate",
            "environment": {k: v for k, v in os.environ.items() if k.endswith("_NUM_THREADS")},
            "command": shlex.join(["minifer", *sys.argv[1:]]),
            "interrupted": self.interrupted,
            "servers": {p.name: {"url": f"http://{p.server.address.authority}", "backend": p.server.api.name,
                                 "idle": p.idle, "command": p.command, **p.about} for p in self.peers},
            "turns": self.turns,
        }  # fmt: skip


DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
           "errors")  # fmt: skip


def _word(rate: float) -> str:
    return f"{rate:g}"
