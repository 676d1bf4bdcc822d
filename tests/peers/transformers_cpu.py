"""Install transformers with torch's CPU build, in a virtual environment of its own.

    python tests/peers/transformers_cpu.py             # about 1 GB; MINIFER_PEERS says where to

Where pip would fetch torch with CUDA (Linux, several GB), set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds.

If you have such an environment already, make `$MINIFER_PEERS/transformers_cpu/venv` a symbolic link to it first.
"""

from __future__ import annotations

from peerlib import fail, finish, home, main, make_venv, output_of, run

TORCH, TRANSFORMERS = "2.13.0", "5.24.0"

VERSIONS = "import torch, transformers; print(torch.__version__, transformers.__version__)"


def install() -> None:
    """Make the environment unless it is there, and install the driver."""
    folder = home() / "transformers_cpu"
    folder.mkdir(exist_ok=True)
    python = make_venv(folder / "venv")
    if output_of([python, "-c", VERSIONS]) is None:
        packages = [f"torch=={TORCH}", f"transformers=={TRANSFORMERS}", "numpy", "safetensors"]
        command = [python, "-m", "pip", "install", *packages]
        run(f"installing torch {TORCH} and transformers {TRANSFORMERS}", command, folder / "install.log")
    versions = (output_of([python, "-c", VERSIONS]) or fail(f"{python} cannot import torch and transformers")).split()
    finish(folder, "transformers", f"{versions[1]} (torch {versions[0]})", "hf", python, "drive_transformers_cpu.py")


if __name__ == "__main__":
    main(install, "transformers_cpu")
