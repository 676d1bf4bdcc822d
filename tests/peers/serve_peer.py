"""Start a peer's own server with minifer's float32 weights, for `minifer bench compare`.

    python tests/peers/serve_peer.py llama.cpp --port 8003
    python tests/peers/serve_peer.py vllm --port 8002 --model smollm2-135m --threads 2

The model is exported once, in float32, to `$MINIFER_PEERS/exports`, and found there the next time. Then this process
*becomes* the server, so its process id is the server's and Ctrl-C or SIGTERM end it.

What is set, because it is not alike by default: llama-server gets `--slots` (8) of 1,024 tokens each, vLLM eager
mode, its first `--threads` cores, and 2 GB for the KV cache. Prefix caches stay on: the workload repeats no prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from peerlib import fail, home, say

FORMS = {"llama.cpp": "gguf", "vllm": "hf"}
FOLDERS = {"llama.cpp": "llama_cpp", "vllm": "vllm_cpu"}
TOKENS_PER_SLOT = 1024


def main() -> None:
    """Read the command line, export if need be, become the server."""
    parser = argparse.ArgumentParser(description="start a peer's server with minifer's float32 weights")
    parser.add_argument("peer", choices=FORMS)
    parser.add_argument("--model", default="smollm2-135m", help="(default %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="(default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--slots", type=int, default=8, help="requests that llama-server runs at once (default 8)")
    args = parser.parse_args()
    manifest = installed(args.peer)
    model = exported(args.model, FORMS[args.peer])
    command, environment = COMMANDS[args.peer](manifest, model, args)
    say(" ".join(command))
    os.execve(command[0], command, {**os.environ, **environment})


def installed(peer: str) -> dict[str, Any]:
    """The peer's manifest; ends the script if it is not installed."""
    path = home() / FOLDERS[peer] / "peer.json"
    if not path.exists():
        fail(f"{peer} is not installed: python tests/peers/{FOLDERS[peer]}.py")
    manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return manifest


def exported(model: str, form: str) -> Path:
    """The model in the peer's form, written on the first call; `minifer export` writes it whole or not at all."""
    name = Path(model).name.replace(":", "-")
    folder = home() / "exports"
    folder.mkdir(exist_ok=True)
    path = folder / (f"{name}-f32.gguf" if form == "gguf" else f"{name}-f32")
    if not path.exists():
        say(f"exporting {model} to {path}")
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "minifer", "export", model, "--to", form, "--dtype", "f32", "-o", str(path)]
        if subprocess.run(command, cwd=root, stdout=sys.stderr).returncode:
            fail(f"{model} could not be exported")
    return path


def llama_cpp(manifest: dict[str, Any], model: Path, args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """`llama-server`: OpenAI's API and its own."""
    program = str(Path(manifest["programs"]) / "llama-server")
    command = [program, "-m", str(model), "--alias", args.model, "--host", "127.0.0.1", "--port", str(args.port),
               "-t", str(args.threads), "-np", str(args.slots), "-c", str(args.slots * TOKENS_PER_SLOT)]  # fmt: skip
    return command, {}


def vllm(manifest: dict[str, Any], model: Path, args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """`vllm serve`: OpenAI's API."""
    command = [manifest["vllm"], "serve", str(model), "--served-model-name", args.model, "--host", "127.0.0.1",
               "--port", str(args.port), "--dtype", "float32", "--enforce-eager",
               "--max-model-len", "2048"]  # fmt: skip
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = sorted(usable)[: args.threads]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                   "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    return command, environment


COMMANDS = {"llama.cpp": llama_cpp, "vllm": vllm}

if __name__ == "__main__":
    main()
