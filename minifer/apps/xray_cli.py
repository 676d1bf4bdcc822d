"""`minifer xray`: run prompts for real, or read a recorded trace, and write one page that shows the run.

    minifer xray smollm2-135m "What is the capital of France?" --and "Name three colours." -o x.html
    minifer xray smollm2-135m "..." --and "..." --ab static -o x.html      a second run with one switch flipped
    minifer xray --trace run.jsonl -o x.html                               of a server, a simulator, an earlier run

The page needs no network and no server: open it from disk.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.llm import LLM

MAX_TOKENS = 24
DEFAULT = Path("xray.html")


def add_parser(subparsers: Any) -> None:
    """Declare `minifer xray`."""
    parser = subparsers.add_parser("xray", help="one page that shows a whole run, step by step")
    what = "a known name, a folder, a .gguf file, `tiny`, or `random:NAME`"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=what)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the first request")
    parser.add_argument("--and", dest="more", action="append", default=[], metavar="PROMPT", help="another request")
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT, metavar="FILE", help=f"(default {DEFAULT})")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="draw this recorded trace instead of running")
    parser.add_argument("--trace-b", type=Path, metavar="FILE", help="a second trace to compare with")
    parser.add_argument("--trace-out", type=Path, metavar="FILE", help="also keep the trace of the run")
    parser.add_argument(
        "--ab",
        metavar="SWITCH",
        help="run twice, the second time with: static, one-seat, no-prefix-caching, no-chunked-prefill, small-chunks, "
        "small-pool",
    )
    parser.add_argument("--plain", action="store_true", help="take prompts as text to go on with, not as questions")
    parser.add_argument("--seats", type=int, default=8, metavar="N", help="answers at a time (default 8)")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    _add_engine_options(parser)
    options.add_sampling_options(parser, MAX_TOKENS)


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    options.add_limit_options(group)


def run(args: argparse.Namespace) -> int:
    """Record or read, build the page, write it, say where it is."""
    from minifer.apps.xray.page import page_of
    from minifer.formats.atomic import atomic_path

    if not args.output.parent.is_dir():
        raise UsageError(f"the page cannot be written to {args.output}: there is no folder {args.output.parent}")
    options.check_output("--trace-out", args.trace_out)
    runs, ceilings = _stored(args) if args.trace is not None else _recorded(args)
    page = page_of(runs, ceilings)
    with atomic_path(args.output) as temporary:
        temporary.write_text(page, "utf-8")
    steps = [sum(record["kind"] == "step" for record in one["records"]) for one in runs]
    told = {"file": str(args.output), "bytes": len(page), "runs": [one["label"] for one in runs], "steps": steps}
    if args.json:
        print(json.dumps(told, ensure_ascii=False))
    else:
        counted = ", ".join(f"{one['label']}: {count} steps" for one, count in zip(runs, steps, strict=True))
        print(f"{args.output}  ({len(page) / 1e3:,.0f} KB; {counted})")
    return 0


def _stored(args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The traces that were named, read with distrust, and put together once to see that they hold together."""
    from minifer.apps.xray.roofs import add_work, roofs_for

    if args.model is not None or args.ab is not None or args.more:
        raise UsageError("--trace draws what was recorded: give no model, no prompt and no --ab with it")
    runs = [_read(path) for path in (args.trace, args.trace_b) if path is not None]
    for one in runs:
        add_work(one["records"])
    return runs, roofs_for(runs[0]["records"])


def _read(path: Path) -> dict[str, Any]:
    from minifer.apps.view.trace_model import build
    from minifer.formats.trace_lines import read_trace

    records = list(read_trace(path))
    build(records)
    return {"label": str(records[0]["about"].get("scene") or path.stem), "records": records}


def _recorded(args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    from minifer.apps.xray import record

    if args.model is None or args.prompt is None:
        raise UsageError('give a model and a prompt (`minifer xray tiny "Once upon a time"`), or --trace FILE')
    if args.trace_b is not None:
        raise UsageError("--trace-b goes with --trace; to run twice, use --ab SWITCH")
    params = options.sampling_params(args)
    if args.ab is not None and args.ab not in record.SWITCHES:
        raise UsageError(f"there is no switch {args.ab!r}; --ab takes one of {', '.join(record.SWITCHES)}")
    with _open(args) as llm:
        prompts = [_ids(llm, text, args.plain) for text in (args.prompt, *args.more)]
        settings = _settings(llm, args, prompts, params)
        _warm_up(llm)
        wanted = [params] * len(prompts)
        if len(settings) > 1:  # the first run of a shape is slower, which should not be taken for what the switch does
            record.record(llm, prompts, wanted, settings[0])
        with _Bar(len(settings) * len(prompts) * (params.max_tokens or 0)) as bar:
            runs = [
                {"label": one.label, "records": record.record(llm, prompts, wanted, one, bar.advance)}
                for one in settings
            ]
        ceilings = _ceilings(llm)
    for one in runs:
        texts = (args.prompt, *args.more)
        one["records"][0]["about"]["asked"] = {f"r{i}": text for i, text in enumerate(texts, start=1)}
    if args.trace_out is not None:
        _keep(runs[0]["records"], args.trace_out)
    return runs, ceilings


def _settings(llm: "LLM", args: argparse.Namespace, prompts: Sequence[tuple[int, ...]], params: Any) -> list[Any]:
    """The run as asked for, and the other one if there is to be one."""
    from minifer.apps.xray.record import Setting, switched

    first = Setting("continuous batching", llm.limits)
    if args.ab is None:
        return [first]
    size = llm.limits.block_size
    needed = max(-(-(len(ids) + (params.max_tokens or 0)) // size) for ids in prompts)
    return [first, switched(llm.limits, args.ab, needed + 1)]


def _open(args: argparse.Namespace) -> "LLM":
    from minifer.llm import LLM

    engine = {n: v for n in options.ENGINE_OPTIONS if (v := getattr(args, n, None)) is not None}
    with options.ProgressBars() as bars:
        return LLM(args.model, progress=bars.update, max_num_seqs=args.seats, **engine)


def _ids(llm: "LLM", text: str, plain: bool) -> tuple[int, ...]:
    """A prompt in the model's chat template where it has one, else as it is."""
    has_template = llm.tokenizer is not None and llm.tokenizer.vocabulary.file.chat_template is not None
    return llm.encode(text) if plain or not has_template else llm.encode_chat([{"role": "user", "content": text}])


def _warm_up(llm: "LLM") -> None:
    """Touch the weights once: the first step of a run should not pay for loading them."""
    from minifer.sampling_params import SamplingParams

    llm.generate([[0] * 4], SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))


def _ceilings(llm: "LLM") -> dict[str, Any] | None:
    """What `minifer roofline` measured and kept, or two quick probes; `source` says which."""
    from minifer.apps.xray.roofs import roofs_of

    return roofs_of(llm)


class _Bar:
    """Tokens of all answers so far, on stderr, where that is a terminal."""

    def __init__(self, most: int) -> None:
        """At most so many tokens will come; an answer may end earlier."""
        self.most = most

    def __enter__(self) -> "_Bar":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        columns = (TextColumn("running, tokens:"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=self.most)
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, tokens: int) -> None:
        """So many more have come."""
        self._progress.advance(self._task, tokens)


def _keep(records: list[dict[str, Any]], path: Path) -> None:
    from minifer.formats.atomic import atomic_path

    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
