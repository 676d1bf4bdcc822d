"""The full comparison: minifer, vLLM and llama-server, the same float32 weights, one command, nobody at the keyboard.

    MINIFER_PEERS=... python tests/peers/compare_servers.py --result-dir results        # about 22 minutes on two cores

100 requests at each of the rates 0.5, 1 and infinity, random prompts of 256 tokens and answers of 64, two threads each.
Expected on two cores: at 0.5 every server needs the 200 s that the requests take to arrive; at 1 about 100 s, and
llama-server a little more, since it cannot keep up; all at once 60 to 110 s. With starting them that is 22 minutes.
A rate of 2 would add 4 minutes and say what infinity says.

The machine should do nothing else meanwhile: the page has the load average before every turn. Servers out of turn are
stopped. minifer and llama-server run up to `--slots` requests at once; vLLM decides that for itself. All at once, with
16 slots instead of 64, minifer wrote 69 tokens a second instead of 79, and llama-server 52 with either.
The answer is in RESULT_DIR/compare.md, compare.png and compare.json; the exit status is that of `bench compare`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from peerlib import say
from serve_peer import FORMS, exported, installed

ROOT = Path(__file__).resolve().parents[2]
PORTS = {"minifer": 18101, "vllm": 18102, "llama.cpp": 18103}


def main() -> None:
    """Export first, so that it takes nobody's time; then measure."""
    parser = argparse.ArgumentParser(description="minifer, vLLM and llama-server under the same load")
    parser.add_argument("--model", default="smollm2-135m", help="(default %(default)s)")
    parser.add_argument("--rate", default="0.5,1,inf", help="(default %(default)s)")
    parser.add_argument("--num-prompts", type=int, default=100, help="(default %(default)s)")
    parser.add_argument("--input-len", type=int, default=256, help="(default %(default)s)")
    parser.add_argument("--output-len", type=int, default=64, help="(default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--slots", type=int, default=64, help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default %(default)s)")
    parser.add_argument("--result-dir", type=Path, default=Path("compare"), help="(default %(default)s)")
    args = parser.parse_args()
    for peer, form in FORMS.items():
        installed(peer)
        exported(args.model, form)
    command = compare_command(args)
    say(shlex.join(command))
    raise SystemExit(subprocess.run(command, cwd=ROOT).returncode)


def compare_command(args: argparse.Namespace) -> list[str]:
    """The command line of `minifer bench compare`."""
    starts = {"minifer": minifer_command(args)} | {peer: peer_command(peer, args) for peer in FORMS}
    names = sorted(starts, key=list(PORTS).index)
    options = {
        "--rate": args.rate,
        "--num-prompts": args.num_prompts,
        "--random-input-len": args.input_len,
        "--random-output-len": args.output_len,
        "--tokenizer": args.model,
        "--seed": args.seed,
        "--num-warmups": 2,
        "--request-timeout": 600,
        "--result-dir": args.result_dir.resolve(),
    }
    command = [sys.executable, "-m", "minifer", "bench", "compare"]
    command += [f"{name}=http://127.0.0.1:{PORTS[name]}" for name in names]
    for name in names:
        command += ["--start", f"{name}={starts[name]}"]
    return command + [str(word) for pair in options.items() for word in pair]


def minifer_command(args: argparse.Namespace) -> str:
    """`minifer serve`; its threads are the cores that it may use."""
    words = [sys.executable, "-m", "minifer", "serve", args.model, "--port", str(PORTS["minifer"]), "--log", "off",
             "--max-num-seqs", str(args.slots), "--no-live"]  # fmt: skip
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    if args.threads < len(usable):
        words = ["taskset", "-c", ",".join(map(str, sorted(usable)[: args.threads])), *words]
    return shlex.join(words)


def peer_command(peer: str, args: argparse.Namespace) -> str:
    """`serve_peer.py` for one of the others."""
    script = Path(__file__).with_name("serve_peer.py")
    words = [sys.executable, script, peer, "--model", args.model, "--port", PORTS[peer], "--threads", args.threads,
             "--slots", args.slots]  # fmt: skip
    return shlex.join(map(str, words))


if __name__ == "__main__":
    main()
