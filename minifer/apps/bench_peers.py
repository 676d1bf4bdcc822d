"""Other engines in the same run: found by their `peer.json`, fed the very weights, asked for one job at a time.

minifer knows no other engine. A peer is a folder under MINIFER_PEERS whose `peer.json` names the form of model that it
loads and the command of its *driver*, a program that answers one line of JSON with another:

    {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "batch": 1, "warmup": false}   ->   {"seconds": 0.81}

The scripts in `tests/peers/` install llama.cpp, transformers and vLLM in this form; a further engine needs a driver of
its own and nothing here. The model is exported in float32 for the occasion, so that all engines run the same numbers.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from minifer.errors import MiniferError, UsageError
from minifer.formats.atomic import Progress, no_progress
from minifer.model.load import Model
from minifer.roofline.speed import Job

START_S, JOB_S, PATIENCE_S = 600.0, 1200.0, 10.0
"""How long a driver may take to load its engine, for one job, and to end."""


class PeerError(MiniferError):
    """A peer did not do what it was asked for: its driver's own words."""


@dataclass(frozen=True)
class PeerInfo:
    """What a `peer.json` says: `form` is `gguf` or `hf`, `kv_width` the bytes of a number in its KV cache."""

    name: str
    version: str
    form: str
    command: tuple[str, ...]
    kv_width: int = 4


def peers_home() -> Path:
    """The folder in which peers are installed: MINIFER_PEERS, by default `~/.cache/minifer-peers`."""
    return Path(os.environ.get("MINIFER_PEERS") or Path.home() / ".cache" / "minifer-peers").expanduser()


def installed() -> list[PeerInfo]:
    """All peers that are ready, by name. A `peer.json` that cannot be read raises UsageError."""
    return sorted((_read(path) for path in peers_home().glob("*/peer.json")), key=lambda peer: peer.name)


def _read(path: Path) -> PeerInfo:
    try:
        found = json.loads(path.read_text("utf-8"))
        return PeerInfo(found["name"], found["version"], found["form"], tuple(found["command"]),
                        found.get("kv_width", 4))  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} does not describe a peer ({error!r}): install it again") from error


def chosen(names: Sequence[str]) -> list[PeerInfo]:
    """The peers of these names, all that are installed if none is given. Raises UsageError where there is none."""
    found = {peer.name: peer for peer in installed()}
    if not found:
        raise UsageError(f"no peer is installed in {peers_home()}: see tests/peers/README.md, or set MINIFER_PEERS")
    unknown = [name for name in names if name not in found]
    if unknown:
        raise UsageError(f"no peer is called {unknown[0]!r}: there are {', '.join(found)}")
    return [found[name] for name in names or found]


class PeerBench:
    """A running driver. It is used like a `RoomBench`: `run(job)` gives seconds."""

    def __init__(self, info: PeerInfo, model: Path, threads: int, log: IO[str]) -> None:
        """Start the driver and wait until its engine has loaded the model; what it says meanwhile goes to `log`."""
        self.info = info
        self._log = log
        try:
            self._process = subprocess.Popen(
                [*info.command, str(model), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is ours: what was measured is printed before the peers end
            )
        except OSError as error:
            raise PeerError(f"{info.name} cannot be started: {error}; install it again") from error
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._answer(START_S)
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, *, warm_up: bool = False) -> float:
        """The seconds that the peer took. Raises PeerError with the driver's reason where it can't."""
        question = {"n_prompt": job.n_prompt, "n_gen": job.n_gen, "n_depth": job.n_depth, "batch": job.batch,
                    "warmup": warm_up}  # fmt: skip
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(f"{self.info.name} has ended: {self._last_words()}") from error
        return float(self._answer(JOB_S)["seconds"])

    def close(self) -> None:
        """End the driver: by closing its input, by force if that takes too long."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        """The driver's next line of JSON; other lines are its engine's chatter."""
        stop = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, stop - time.monotonic()))
            except queue.Empty:
                raise PeerError(f"{self.info.name} gave no answer for {limit_s:g} s") from None
            if line is None:
                self._lines.put(None)  # whoever asks again finds the end again, and not an empty queue
                raise PeerError(f"{self.info.name} has ended: {self._last_words()}")
            if line.startswith("{"):
                return self._checked(json.loads(line))

    def _listen(self) -> None:
        """Runs in a thread of its own, so that waiting for a line can have a limit on every system."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise PeerError(f"{self.info.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = Path(self._log.name).read_text("utf-8", errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
        return "without a word"


@contextlib.contextmanager
def running(
    peers: Sequence[PeerInfo], model: Model, threads: int, progress: Progress = no_progress
) -> Iterator[list[PeerBench]]:
    """Export the model for these peers, start them, and end and remove everything afterwards.

    A peer that cannot be started is left out, with its reason on stderr.
    """
    with TemporaryDirectory(prefix="minifer-peers-") as folder, contextlib.ExitStack() as stack:
        paths: dict[str, Path] = {}
        benches = []
        for info in peers:
            if info.form not in paths:
                paths[info.form] = exported(model, info.form, Path(folder), progress)
            log = stack.enter_context((Path(folder) / f"{info.name}.log").open("w", encoding="utf-8"))
            try:
                bench = PeerBench(info, paths[info.form], threads, log)
            except PeerError as error:
                print(f"minifer: left out: {error}", file=sys.stderr)
                continue
            stack.callback(bench.close)
            benches.append(bench)
        yield benches


def exported(model: Model, form: str, folder: Path, progress: Progress = no_progress) -> Path:
    """The model's float32 weights as a GGUF file or as a Hugging Face folder, below `folder`."""
    from minifer.apps import export

    if form == "gguf":
        path = folder / "model.gguf"
        export.export_gguf(model, path, "F32", progress)
    elif form == "hf":
        path = folder / "model"
        export.export_hf(model, path, "F32", progress)
    else:
        raise UsageError(f"a peer wants its model as {form!r}: only gguf and hf can be written")
    return path
