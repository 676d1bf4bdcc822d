"""`minifer serve MODEL --ray`: starts Ray on this machine or joins a cluster, puts the application there, and watches.

Without `--address` Ray runs here only: on loopback, without a dashboard, with usage statistics off, the cores shared
out among the replicas. Ctrl-C ends all of it. With `--address` the cluster was there before and stays; what ends is
this application, and Ray Serve too if it was started here.

Two things are Ray's and not to be had otherwise: each actor of Ray Serve opens one port for its fellows on *every*
interface (so let a firewall stand between a machine and strangers), and the log of the requests is in Ray's folder
(`/tmp/ray/session_latest/logs`), where the actors write.
"""

import argparse
import contextlib
import io
import logging
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from minifer.errors import DeviceError, UsageError

NAME = "minifer"
"""Of the application, among others on a cluster."""

STORE_BYTES = 128 << 20
"""Ray's store of objects. What passes here is small; by default Ray takes a third of the memory."""

OFF = {"RAY_USAGE_STATS_ENABLED": "0"}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's name for `not only on this machine`, on Linux too; read when it is imported."""

NOT_WITH_RAY = {
    "devices": (None, "Ray places the replicas: --replicas says how many"),
    "trace": (None, "the actors may be on other machines, where no file is written"),
    "live": (None, "there is no trace to look at"),
    "max_connections": (4096, "the connections are Ray's"),
    "read_timeout": (30.0, "the connections are Ray's"),
    "send_timeout": (120.0, "the connections are Ray's"),
    "silence": (300.0, "Ray watches the actors"),
}
"""Option -> its default, and why another value is refused rather than ignored."""


class GoneAway(DeviceError):
    """The cluster does not answer any more."""


def check(args: argparse.Namespace) -> tuple[int, int]:
    """The fewest and the most replicas. Raises UsageError for options that make no sense with `--ray`, or without."""
    if not args.ray:
        for name in ("address", "replicas"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name} is about Ray: say --ray too, or leave it out")
        return 1, 1
    for name, (default, why) in NOT_WITH_RAY.items():
        if getattr(args, name) != default:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --ray: {why}")
    if re.fullmatch(r"cuda:\d+", args.device):
        raise UsageError(f"--device {args.device} does not go with --ray, which hands out the GPUs: say cuda")
    return span(args.replicas or "1")


def span(replicas: str | int) -> tuple[int, int]:
    """The fewest and the most replicas. Raises UsageError.

    >>> span("2..8"), span(2)
    ((2, 8), (2, 2))
    """
    low, dots, high = str(replicas).strip().partition("..")
    numbers = [low, high] if dots else [low, low]
    if not all(n.isascii() and n.isdigit() and len(n) < 6 for n in numbers):
        raise UsageError(f"--replicas is a number or a span like 2..8, not {replicas!r}")
    least, most = map(int, numbers)
    if not 1 <= least <= most:
        raise UsageError(f"--replicas begins with the smaller number, and that is at least 1, not {replicas!r}")
    return least, most


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, SIGTERM, or the end of the cluster."""
    _least, most = check(args)
    os.environ.update(OFF | ({} if args.address else LOOPBACK))
    try:
        import ray
        from ray import serve
    except ImportError:
        raise UsageError("Ray is missing: pip install 'minifer[ray]'") from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    port = args.port or _free_port(args.host)
    if not args.address:  # the workers find it in the cache; on a cluster each machine fetches its own
        _fetch(args.model)
    print(f"minifer: starting Ray for {args.model}", file=sys.stderr, flush=True)
    started_serve = False
    try:
        address = _join(ray, args.address) if args.address else _start(ray)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has put its own there
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
        started_serve = not serve.status().proxies
        serve.start(proxy_location="HeadOnly", http_options={"host": args.host, "port": port})
        _deploy(serve, _application(ray, args, most))
        where = f"http://{args.host}:{port}" if started_serve else "the address of the Ray Serve that was there"
        print(f"minifer: {args.model} is served at {where}; Ctrl-C stops", file=sys.stderr, flush=True)
        _watch(address)
    except KeyboardInterrupt:
        pass
    except GoneAway as error:
        if args.address:
            print(f"minifer: {error}", file=sys.stderr, flush=True)
            os._exit(2)  # whatever Ray still has to say to the cluster would take it a minute
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end(ray, serve, args.address is None, started_serve)
    return 0


def _fetch(model: str) -> None:
    from minifer import hub
    from minifer.apps import options

    with options.ProgressBars() as bars:
        hub.locate(model, progress=bars.update)


def _start(ray: Any) -> str:
    """Ray on this machine. Raises DeviceError."""
    common = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        context = ray.init(address="local", num_cpus=cores, object_store_memory=STORE_BYTES, **common)
    except Exception as error:
        raise DeviceError(
            f"Ray did not start here, perhaps because the machine is busy: {_first_line(error)}"
        ) from None
    return str(context.address_info["gcs_address"])


def _join(ray: Any, address: str) -> str:
    """A cluster that runs. Raises UsageError where there is none."""
    what = "start one with `ray start --head`, and give its HOST:PORT or `auto`"
    asked = _noted() if address == "auto" else address
    if asked is not None:
        host, _, port = asked.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--address is `auto` or HOST:PORT, not {asked!r}")
        if not _answers(asked):  # Ray itself would try for a minute
            raise UsageError(f"no Ray cluster answers at {asked}: {what}")
    try:
        context = ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        raise UsageError(f"no Ray cluster can be joined at {address} ({_first_line(error)}): {what}") from None
    return str(context.address_info["gcs_address"])


def _noted() -> str | None:
    """Where Ray noted the last cluster of this machine, which may be gone."""
    file = Path("/tmp/ray/ray_current_cluster")
    return os.environ.get("RAY_ADDRESS") or (file.read_text().strip() if file.is_file() else None) or None


def _application(ray: Any, args: argparse.Namespace, most: int) -> Any:
    """The application of a command line. The cores of one machine are shared out; of a cluster each takes one."""
    from minifer.apps import options, serve_cli
    from minifer.apps.serve.ray import application

    model = str(Path(args.model).resolve()) if Path(args.model).exists() else args.model
    args.live = False
    names = (*options.ENGINE_OPTIONS, "max_num_seqs")
    engine = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    total = ray.cluster_resources()
    gpu = args.device == "cuda" or (args.device == "auto" and total.get("GPU", 0) > 0)
    cores = total.get("CPU", 1) / most if not args.address else 1.0
    actor = {"num_cpus": int(cores * 1e4) / 1e4, "num_gpus": int(gpu)}
    if not gpu:
        engine |= {"device": "cpu", "room_options": {"threads": max(1, int(cores))}}
    settings = serve_cli.make_settings(args)
    return application(
        model,
        settings,
        replicas=args.replicas or 1,
        route=args.route,
        max_queue=args.max_queue,
        engine=engine,
        actor=actor,
        patience_s=args.shutdown_deadline,
    )


def _deploy(serve: Any, application: Any) -> None:
    """Put it there and wait until it serves. Raises DeviceError with the reason if it can't."""
    try:
        serve.run(application, name=NAME, route_prefix="/")
    except Exception as error:
        application = serve.status().applications.get(NAME)
        said = [d.message for d in application.deployments.values()] if application else []
        why = reason_of("\n".join([str(error), *said]))
        raise DeviceError(f"Ray could not start the replicas: {why}") from None


def reason_of(text: str) -> str:
    """Of a page of Ray's tracebacks the line that says why.

    >>> reason_of("Deploying failed ... raise x\\n  minifer.errors.DeviceError: replica 0 did not start: no file\\n...")
    'replica 0 did not start: no file'
    """
    found = re.findall(r"^\s*(?:ray\.\S+\.RayTaskError\()?minifer\.errors\.\w+\)?: (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return str(found[-1]) if found else (lines[-1] if lines else "it did not say why")


def _watch(address: str) -> None:
    """Until the cluster goes away: then Ray would wait for a minute and end the process. Raises GoneAway."""
    while True:
        time.sleep(1.0)
        if not _answers(address) and not _answers(address):
            raise GoneAway(f"the Ray cluster at {address} has gone away: start it again, and then this server")


def _end(ray: Any, serve: Any, own_ray: bool, own_serve: bool) -> None:
    """End what was started here, and nothing else."""
    if not ray.is_initialized():
        return
    if own_ray:
        ray.shutdown()
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # Ray talks as it goes
        serve.shutdown() if own_serve else serve.delete(NAME)
        ray.shutdown()


def _answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
    except (OSError, OverflowError):
        return False
    return True


def _free_port(host: str) -> int:
    from minifer.apps.serve.server import bound_socket

    with bound_socket(host, 0) as sock:
        return int(sock.getsockname()[1])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
