"""`minifer serve MODEL`: an HTTP server that speaks OpenAI's, Ollama's and llama-server's language.

    minifer serve smollm2-135m
    minifer serve smollm2-135m --devices cuda:0,cuda:1 --route prefix-affinity --api-key-file key.txt
    minifer serve smollm2-135m --ray --replicas 2..8

Every device in `--devices` gets a replica, a process with a copy of the model; CPU replicas share the cores. It listens
on this machine only unless told otherwise (`--host 0.0.0.0`); do that with a key.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.apps.serve.router import POLICIES
from minifer.device import select_device, why_no_gpu
from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.apps.serve.replica import Replica
    from minifer.apps.serve.service import Service, Settings

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_parser(subparsers: Any) -> None:
    """Declare `minifer serve`."""
    parser = subparsers.add_parser("serve", help="an HTTP server")
    options.add_model_options(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    group.add_argument("--port", type=int, default=8000, help="0 takes any that is free (default 8000)")
    group.add_argument("--served-model-name", metavar="NAME", help="the name that requests give (default: the model's)")
    group.add_argument("--devices", metavar="D,D,...", help="one replica on each, e.g. cpu,cpu or cuda:0,cuda:1")
    group.add_argument("--route", choices=POLICIES, default="prefix-affinity", help="which replica a request goes to")
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="answers in a batch (default 8)")
    group.add_argument("--max-queue", type=int, default=512, metavar="N", help="unfinished answers before a 429 (512)")
    group.add_argument("--max-body", type=int, default=4 << 20, metavar="BYTES", help="largest request (4 MiB)")
    group.add_argument("--max-prompts", type=int, default=128, metavar="N", help="most prompts in one request (128)")
    group.add_argument("--max-connections", type=int, default=4096, metavar="N", help="then a 503 (4096)")
    group.add_argument("--read-timeout", type=float, default=30.0, metavar="S", help="for a request to arrive (30)")
    group.add_argument("--send-timeout", type=float, default=120.0, metavar="S", help="for a client to read on (120)")
    group.add_argument("--silence", type=float, default=300.0, metavar="S", help="then a busy replica is killed (300)")
    group.add_argument("--shutdown-deadline", type=float, default=10.0, metavar="S", help="to finish answers (10)")
    _add_security(parser.add_argument_group("who may come in"))
    group = parser.add_argument_group("Ray")
    group.add_argument("--ray", action="store_true", help="replicas as actors of Ray, here or on a cluster")
    group.add_argument("--replicas", metavar="N|N..M", help="with --ray: how many, or from how many to how many (1)")
    group.add_argument(
        "--address", metavar="HOST:PORT", help="with --ray: of a cluster, or `auto` (default: start one)"
    )
    group = parser.add_argument_group("what is written down")
    group.add_argument("--trace", type=Path, metavar="FILE", help="the trace; of several replicas FILE.0, FILE.1 ...")
    group.add_argument(
        "--live", action=argparse.BooleanOptionalAction, help="show the trace at / (default: on loopback)"
    )
    group.add_argument("--log", choices=("json", "off"), default="json", help="a line per request on stderr")


def _add_security(group: Any) -> None:
    group.add_argument(
        "--api-key", action="append", default=[], metavar="KEY", help="may be repeated; other users see it"
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one a line; or set MINIFER_API_KEY")
    group.add_argument("--cors", action="append", default=[], metavar="ORIGIN", help="web pages that may ask; * is all")
    group.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME", help="more names in Host; * is all"
    )


def run(args: argparse.Namespace) -> int:
    """Fetch the model, start the replicas, serve until told to stop."""
    try:
        from minifer.apps.serve import ray_command
        from minifer.apps.serve.app import build
        from minifer.apps.serve.server import bound_socket, make_server
    except ImportError as error:
        raise UsageError(f"{error.name} is missing: pip install 'minifer[serve]'") from None
    _check(args)
    socket = bound_socket(args.host, args.port)
    if args.ray:
        socket.close()  # it was free: Ray's proxy listens there
        return ray_command.run(args)
    service = make_service(args)
    server = make_server(build(service), service, host=args.host, port=args.port, deadline_s=args.shutdown_deadline)
    where = socket.getsockname()
    host = f"[{where[0]}]" if ":" in where[0] else where[0]
    print(f"minifer: loading {args.model}", file=sys.stderr, flush=True)
    server.when_started = lambda: print(_welcome(service, f"http://{host}:{where[1]}"), file=sys.stderr, flush=True)
    server.run(sockets=[socket])
    return 0


def _check(args: argparse.Namespace) -> None:
    at_least_one = ("max_queue", "max_body", "max_prompts", "max_connections", "max_num_seqs", "num_blocks",
                    "block_size", "max_model_len", "max_num_batched_tokens")  # fmt: skip
    for name, low in {**dict.fromkeys(at_least_one, 1), "port": 0}.items():
        if (value := getattr(args, name)) is not None and value < low:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {low}, not {getattr(args, name)}")
    for name in ("read_timeout", "send_timeout", "silence", "shutdown_deadline"):
        if not getattr(args, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0 seconds, not {getattr(args, name)}")
    if args.port > 65535:
        raise UsageError(f"--port must be at most 65535, not {args.port}")
    if not args.host:
        raise UsageError("--host is empty: name an address, 127.0.0.1 for this machine only or 0.0.0.0 for all")
    if args.devices == "":
        raise UsageError("--devices is empty: name them as in cpu,cpu or cuda:0,cuda:1")
    from minifer.apps.serve import ray_command

    ray_command.check(args)
    for name in () if args.ray else _devices(args):
        _check_device(name)


def _welcome(service: "Service", url: str) -> str:
    model, seats = service.settings.model_name, service.fleet.seats
    replicas = f"{len(seats)} replicas" if len(seats) > 1 else "1 replica"
    return f"minifer: {model} is served at {url} by {replicas}; Ctrl-C stops"


def make_service(args: argparse.Namespace) -> "Service":
    """Everything but the sockets, from a command line. The model is fetched here, once for all replicas."""
    from minifer import hub
    from minifer.apps.serve.fleet import Fleet
    from minifer.apps.serve.service import Service
    from minifer.apps.serve.tape import Tape

    with options.ProgressBars() as bars:
        hub.locate(args.model, progress=bars.update)
    settings = make_settings(args)
    replicas = make_replicas(args, trace=bool(args.trace or settings.live))
    tape = Tape(len(replicas), _trace_files(args.trace, len(replicas))) if args.trace or settings.live else None
    fleet = Fleet(
        replicas,
        route=args.route,
        max_queue=args.max_queue,
        silence_s=args.silence,
        on_trace=tape.take if tape else None,
    )
    return Service(fleet, settings, tape)


def make_settings(args: argparse.Namespace) -> "Settings":
    """The settings of a command line."""
    from minifer.apps.serve.service import Settings

    on_loopback = args.host in LOOPBACK
    hosts = () if "*" in args.allowed_host or not on_loopback else (*LOOPBACK, *map(str.lower, args.allowed_host))
    return Settings(
        model_name=args.served_model_name or _name_of(args.model),
        api_keys=_keys(args),
        cors=tuple(args.cors),
        hosts=hosts,
        max_body=args.max_body,
        max_prompts=args.max_prompts,
        max_connections=args.max_connections,
        read_timeout_s=args.read_timeout,
        send_timeout_s=args.send_timeout,
        live=on_loopback if args.live is None else args.live,
        log=_log if args.log == "json" else None,
    )


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _name_of(model: str) -> str:
    """A known name as it is; of a file or a folder its own name, so that no path is told."""
    path = Path(model)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


def _keys(args: argparse.Namespace) -> tuple[str, ...]:
    keys = list(args.api_key)
    if args.api_key_file is not None:
        try:
            lines = args.api_key_file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise UsageError(f"{args.api_key_file} is not a text file with a key on each line") from None
        keys += [key for line in lines if (key := line.strip())]
        if not keys:
            raise UsageError(f"{args.api_key_file} holds no key")
    if os.environ.get("MINIFER_API_KEY"):
        keys.append(os.environ["MINIFER_API_KEY"])
    if any(not key for key in keys):
        raise UsageError("an API key is empty")
    return tuple(keys)


def make_replicas(args: argparse.Namespace, trace: bool) -> "list[Replica]":
    """One replica per device; those on the CPU get equal shares of the cores."""
    from minifer.apps.serve.replica import Replica

    devices = _devices(args)
    given = (*(name for name in options.ENGINE_OPTIONS if name != "device"), "max_num_seqs")
    common = {name: value for name in given if (value := getattr(args, name, None)) is not None}
    shares, on_gpu = cores_of(devices), [device for device in devices if device.startswith(("cuda", "strict"))]
    if getattr(args, "no_graph", False) and len(on_gpu) < len(devices):
        raise UsageError("--no-graph is about CUDA graphs: name only CUDA devices with it, e.g. --devices cuda:0")
    if getattr(args, "no_graph", False):
        common["room_options"] = {"graphs": False}
    return [
        Replica(i, args.model, {**common, "device": device, "cores": shares[i]}, about={"replica": i}, trace=trace)
        for i, device in enumerate(devices)
    ]


def _devices(args: argparse.Namespace) -> list[str]:
    names = [name.strip() for name in (args.devices or args.device).split(",")]
    if not all(names):
        raise UsageError(f"--devices is a list like cpu,cpu or cuda:0,cuda:1, not {args.devices!r}")
    return names


def _check_device(name: str) -> None:
    """Raise for a device that is not to be had, before anything is fetched or started.

    A GPU that is there is left to its replica: to select it here would take memory of it for nothing.
    """
    if name != "auto" and not (name.startswith("cuda") and why_no_gpu() is None):
        select_device(name)


def cores_of(devices: list[str]) -> list[list[int] | None]:
    """Which cores each replica may use: None (all) unless several share the CPU and there are enough for each.

    >>> cores_of(["cuda:0"])
    [None]
    """
    on_cpu = [i for i, name in enumerate(devices) if not name.startswith("cuda")]
    shares: list[list[int] | None] = [None] * len(devices)
    if len(on_cpu) < 2 or not hasattr(os, "sched_getaffinity"):
        return shares
    cores = sorted(os.sched_getaffinity(0))
    for place, i in enumerate(on_cpu):
        mine = cores[place * len(cores) // len(on_cpu) : (place + 1) * len(cores) // len(on_cpu)]
        shares[i] = mine or [cores[place % len(cores)]]
    return shares


def _trace_files(path: Path | None, count: int) -> list[Any]:
    if path is None:
        return []
    names = [path] if count == 1 else [path.with_name(f"{path.name}.{i}") for i in range(count)]
    return [open(name, "w", encoding="utf-8") for name in names]  # closed when the server ends
