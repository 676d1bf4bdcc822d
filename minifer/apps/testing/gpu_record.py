"""What has to be known beside a number that a GPU gave: which GPU, which versions, which commit, when.

Records are JSON files. `minifer bench gpu` and `pytest --gpu --results FILE` both write this environment into theirs,
so that the two can be laid side by side, and so that a table made of them can say where each row comes from.
"""

import datetime
import importlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minifer import __version__
from minifer.device import why_no_gpu
from minifer.formats.atomic import atomic_path

PACKAGES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes", "torch", "transformers")
RESULTS_FOLDER = Path("tests") / "gpu_results"
ROOT = Path(__file__).resolve().parents[3]

GPU_FIELDS = {
    "sms": "multiProcessorCount",
    "memory_bytes": "totalGlobalMem",
    "l2_bytes": "l2CacheSize",
    "clock_khz": "clockRate",
    "memory_bus_bits": "memoryBusWidth",
    "shared_bytes_per_block": "sharedMemPerBlockOptin",
    "registers_per_sm": "regsPerMultiprocessor",
}


def environment() -> dict[str, Any]:
    """Versions, platform, commit, time, and the GPU (None without one, with the reason)."""
    reason = why_no_gpu()
    return {
        "minifer": __version__,
        "commit": commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: v for name in PACKAGES if (v := _version(name))},
        "gpu": None if reason else gpu_facts(),
        "why_no_gpu": reason,
    }


def gpu_facts() -> dict[str, Any]:
    """The current GPU as the driver describes it. Fields that this CuPy does not know are left out."""
    runtime = importlib.import_module("cupy").cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    name = properties["name"]
    facts: dict[str, Any] = {
        "name": name.decode() if isinstance(name, bytes) else str(name),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "driver_cuda": runtime.driverGetVersion(),
        "runtime_cuda": runtime.runtimeGetVersion(),
    }
    facts |= {ours: int(properties[theirs]) for ours, theirs in GPU_FIELDS.items() if theirs in properties}
    return facts


def commit() -> str | None:
    """The commit of the checkout that this package lies in, `+` behind it if files have changed; None elsewhere."""
    if not (ROOT / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True, timeout=10)
            for args in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


def default_path(environment: Mapping[str, Any]) -> Path:
    """Where a record goes if nobody says: into the checkout's folder of GPU results, else into the current folder."""
    gpu = environment["gpu"]["name"] if environment.get("gpu") else "no-gpu"
    name = "".join(c if c.isalnum() else "-" for c in gpu).strip("-").lower()
    stamp = environment["time"][:19].replace(":", "").replace("-", "")
    folder = ROOT / RESULTS_FOLDER if (ROOT / "tests" / "house.py").exists() else Path.cwd()
    return folder / f"bench-{name}-{stamp}.json"


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record whole or not at all. Whatever is no JSON (a NumPy number, a path) becomes text or a number."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
