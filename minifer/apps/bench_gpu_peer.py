"""transformers on the same GPU, in a process of its own: prefill and decode of a model with random weights.

    python -m minifer.apps.bench_gpu_peer random:llama-3.2-1b --prompt 512 --generate 64

prints one line of JSON. `minifer bench gpu` starts it where `transformers` and `torch` are installed; as a child it
gives its memory back when it ends, and whatever happens to it happens to it alone. It times what `bench_gpu_model.py`
times, the same way: tokens are given, none is sampled, the clock stops when the device has finished.

Not here: compiled graphs (`torch.compile` takes longer than the whole benchmark may). The record says so.
"""

import argparse
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from minifer import hub
from minifer.errors import MiniferError, UsageError

NEEDED = ("torch", "transformers")
LIMIT_S = 100.0
REPEATS = 3


def why_no_peer() -> str | None:
    """None where torch and transformers are installed; otherwise what is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def measure_apart(model: str, *, dtype: str, prompts: Sequence[int], generate: int, batches: Sequence[int]) -> Any:
    """Run this module as a child process and return what it printed. Raises MiniferError if it failed."""
    words = [sys.executable, "-m", "minifer.apps.bench_gpu_peer", model, "--dtype", dtype, "--generate", str(generate)]
    words += ["--prompt", *map(str, prompts), "--batch", *map(str, batches)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise MiniferError(f"transformers took longer than {LIMIT_S:.0f} s and was stopped") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise MiniferError(f"transformers failed: {' '.join(done.stderr.split())[-300:]}")
    return json.loads(lines[-1])


def config_of(model: str) -> dict[str, Any]:
    """What config.json would say."""
    if model.startswith("random:"):
        return hub.random_config(model)
    found: dict[str, Any] = json.loads((hub.locate(model).path / "config.json").read_text(encoding="utf-8"))
    return found


class Peer:
    """A transformers model with random weights on a device."""

    def __init__(self, model: str, dtype: str, device: str) -> None:
        """Build it on the device directly, so that a large one doesn't pass through host memory."""
        torch, transformers = (importlib.import_module(name) for name in NEEDED)
        self.torch, self.device = torch, torch.device(device)
        fields = config_of(model)
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        with self.device:
            built = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        self.model = built.eval()
        self.vocab_size = config.vocab_size

    def prefill(self, length: int) -> float:
        """Seconds for one prompt, logits of its last token only."""
        ids = self._ids(1, length)
        return self._best(lambda: self.model(ids, use_cache=True, logits_to_keep=1))

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Seconds of a decode step: the median over `steps`, behind `context` tokens."""
        cache = self.model(self._ids(batch, context), use_cache=True, logits_to_keep=1).past_key_values
        token, times = self._ids(batch, 1), []
        for _ in range(steps):
            times.append(self._seconds(lambda: self.model(token, past_key_values=cache, use_cache=True)))
        return statistics.median(times[min(4, steps // 2) :])

    def _ids(self, batch: int, length: int) -> Any:
        generator = self.torch.Generator(self.device).manual_seed(length)
        shape = (batch, length)
        return self.torch.randint(0, self.vocab_size, shape, generator=generator, device=self.device)

    def _best(self, call: Callable[[], object]) -> float:
        call()
        return statistics.median(self._seconds(call) for _ in range(REPEATS))

    def _seconds(self, call: Callable[[], object]) -> float:
        self._wait()
        start = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The rows that the command prints: the same jobs that minifer ran, by name."""
    peer = Peer(args.model, args.dtype, args.device)
    rows: dict[str, Any] = {}
    with peer.torch.inference_mode():
        for length in args.prompt:
            rows[f"pp{length}"] = {"seconds": (s := peer.prefill(length)), "tokens_per_s": length / s}
        for batch in args.batch:
            s = peer.decode(batch, min(args.prompt), args.generate)
            rows[f"decode b{batch}"] = {"seconds": s, "tokens_per_s": batch / s}
    versions = {name: importlib.import_module(name).__version__ for name in NEEDED}
    return {"model": args.model, "dtype": args.dtype, "versions": versions, "mode": "eager, no graph", "rows": rows}


def main() -> int:
    """The child process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompt", type=int, nargs="+", default=[512])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--generate", type=int, default=32)
    args = parser.parse_args()
    if reason := why_no_peer():
        raise UsageError(reason)
    print(json.dumps(measure(args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
