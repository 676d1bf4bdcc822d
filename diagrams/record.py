"""Record the runs that the figures of this folder are drawn from: `python diagrams/record.py [SCENE ...]`.

Every scene is a real run of a real model on this machine, written as diagrams/traces/SCENE.jsonl. Requests come in
before a given *step*, not at a given second, so that the order of events is the same on every machine; the times are
those of the machine that recorded, which the header of each trace names. Afterwards, `minifer diagrams` draws.

    one         one question, from the prompt to its last token
    static      eight answers of different lengths in four seats, a closed batch
    continuous  the same eight, a seat given on the moment it is free
    whole       three streams, and a prompt of 512 tokens computed in one step
    chunked     the same, in steps of at most 128 tokens
    blocks      six requests, one system prompt, a pool so small that somebody has to give his blocks back
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minifer import LLM, SamplingParams
from minifer.apps import doctor
from minifer.engine import Engine
from minifer.formats.atomic import atomic_path
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.request import Request
from minifer.scheduler.static import StaticScheduler
from minifer.trace import TraceWriter

TRACES = Path(__file__).parent / "traces"
MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Asked:
    """One request of a scene: what it asks, how long its answer may be, and before which step it comes."""

    id: str
    ids: tuple[int, ...]
    max_tokens: int
    before: int = 1
    stop: bool = False  # end at the end-of-sequence token; else all of max_tokens


@dataclass(frozen=True)
class Scene:
    """A run: who asks, who decides, and the limits of the engine."""

    about: str
    requests: tuple[Asked, ...]
    limits: dict[str, Any] = field(default_factory=dict)
    scheduler: type = ContinuousScheduler


def main() -> None:
    """Record the scenes that were asked for, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help="(default: all of them)")
    parser.add_argument("--model", default=MODEL, help=f"(default {MODEL})")
    parser.add_argument("--tries", type=int, default=5, help="keep the fastest of so many runs (default 5)")
    parser.add_argument("-o", "--out", type=Path, default=TRACES, metavar="DIR", help="(default diagrams/traces)")
    args = parser.parse_args()
    with LLM(args.model, device="cpu", max_num_batched_tokens=1024, max_model_len=1024, num_blocks=256) as llm:
        known = scenes(llm)
        for name in args.scenes or known:
            if name not in known:
                sys.exit(f"there is no scene {name!r}: it is one of {', '.join(known)}")
            path = args.out / f"{name}.jsonl"
            # Whatever else the machine does can only make a run slower, and so does the first one of a shape.
            runs = [play(llm, known[name]) for _ in range(args.tries)]
            with atomic_path(path) as temporary:
                temporary.write_text(min(runs, key=seconds), encoding="utf-8")
            sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n")


def seconds(trace: str) -> float:
    """When the last step of a trace ended."""
    last: float = json.loads(trace.splitlines()[-1])["end"]
    return last


def play(llm: LLM, scene: Scene) -> str:
    """Run a scene; returns its trace, with the text of every token that appears."""
    limits = type(llm.limits)(**{**asdict(llm.limits), **scene.limits})
    lines = io.StringIO()
    trace = TraceWriter(lines)
    engine = Engine(scene.scheduler(limits), llm.engine.executor, llm.clock, trace)
    to_come = sorted(scene.requests, key=lambda asked: asked.before)
    while engine.has_work or to_come:
        while to_come and to_come[0].before <= engine.scheduler.num_steps + 1:
            engine.add(request(llm, to_come.pop(0)))
        engine.step()
    trace.close()
    records = [json.loads(line) for line in lines.getvalue().splitlines()][1:]
    pieces = {str(token): llm.tokenizer.decode([token]) for token in sorted(set(tokens_of(records)))}
    here = doctor.conditions()
    about = {"model": llm.name, "scene": scene.about, "scheduler": scene.scheduler.__name__,
             "kv_bytes_per_token": llm.config.kv_bytes_per_token, **here, "pieces": pieces}  # fmt: skip
    header = {"kind": "header", "minifer_trace": 1, "config": asdict(limits), "about": about}
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in [header, *relative(records)])


def request(llm: LLM, asked: Asked) -> Request:
    """A request that draws greedily, so that the same scene gives the same tokens again."""
    params = SamplingParams(temperature=0, max_tokens=asked.max_tokens, ignore_eos=not asked.stop)
    return Request(asked.id, asked.ids, params, llm.clock.now(), eos_ids=llm.config.eos_token_ids)


def tokens_of(records: Sequence[dict[str, Any]]) -> Iterator[int]:
    """Every token id of a trace."""
    for record in records:
        yield from record.get("prompt", ())
        yield from (row[1] for row in record.get("tokens", ()) if row[1] is not None)


def relative(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records with times from the first arrival on, in whole microseconds: files stay small and can be read."""
    zero = min(record["arrival"] for record in records if record["kind"] == "request")
    for record in records:
        for name in ("time", "arrival", "start", "end"):
            if name in record:
                record[name] = round(record[name] - zero, 6)
        for row in record.get("tokens", ()):
            row[2] = None if row[2] is None else round(row[2], 4)
        yield record


# ---- the scenes ------------------------------------------------------------------------------------------------------

LENGTHS = (6, 30, 12, 22, 9, 26, 14, 18)
"""Tokens of the eight answers of `static` and `continuous`."""

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "How many legs does a spider have?",
    "Why is the sky blue?",
    "What do bees make?",
    "Who wrote Hamlet?",
    "What is the largest ocean?",
    "How do plants grow?",
)
SYSTEM = (
    "You are a patient teacher of a class of curious children. Answer every question in short and simple sentences, "
    "give one example from daily life, and never use a word that a child of nine years would not know."
)


def scenes(llm: LLM) -> dict[str, Scene]:
    """All of them, in the words of this model's vocabulary."""
    eight = tuple(
        Asked(f"r{i}", chat(llm, question), length)
        for i, (question, length) in enumerate(zip(QUESTIONS, LENGTHS, strict=True), start=1)
    )
    document = llm.encode(Path(doctor.__file__).read_text(encoding="utf-8"))[:512]
    streams = (*(Asked(f"r{i}", asked.ids, 36) for i, asked in enumerate(eight[:3], start=1)),
               Asked("long", document, 8, before=8))  # fmt: skip
    shared = tuple(
        Asked(f"r{i}", chat(llm, question, SYSTEM), length, before)
        for i, (question, length, before) in enumerate(zip(QUESTIONS, POOL_LENGTHS, POOL_STEPS, strict=False), start=1)
    )
    four, small = {"max_num_seqs": 4}, {"max_num_seqs": 4, "num_blocks": 14, "max_model_len": 224}
    return {
        "one": Scene("one question", (Asked("r1", eight[0].ids, 32, stop=True),)),
        "static": Scene("eight answers in four seats, a closed batch", eight, four, StaticScheduler),
        "continuous": Scene("eight answers in four seats", eight, four),
        "whole": Scene("a long prompt in one step beside three streams", streams),
        "chunked": Scene("a long prompt in chunks beside three streams", streams, {"max_num_batched_tokens": 128}),
        "blocks": Scene("one system prompt, six questions, few blocks", shared, small),
    }


POOL_LENGTHS, POOL_STEPS = (44, 40, 60, 34, 20, 24), (1, 3, 5, 7, 20, 30)


def chat(llm: LLM, question: str, system: str | None = None) -> tuple[int, ...]:
    """A question in the model's chat template."""
    first = [{"role": "system", "content": system}] if system else []
    return llm.encode_chat([*first, {"role": "user", "content": question}])


if __name__ == "__main__":
    main()
