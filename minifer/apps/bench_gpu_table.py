"""The table of GPU results, made from the records in `tests/gpu_results/` and from nothing else.

    python -m minifer.apps.bench_gpu_table            print it
    python -m minifer.apps.bench_gpu_table --write    put it into notebooks/RESULTS.md, under the heading "GPU"

Where there is no record, it says that nothing has been measured.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minifer.apps.numerals import three
from minifer.apps.testing.gpu_record import RESULTS_FOLDER, ROOT
from minifer.errors import FormatError, MiniferError
from minifer.formats.atomic import atomic_path

RESULTS = ROOT / "notebooks" / "RESULTS.md"
HEADING = "## GPU\n"
NOTHING = "Not measured yet: there is no record in `tests/gpu_results/` (`minifer bench gpu` on a GPU makes one)."
MARK_NAMES = {
    "decode_of_bandwidth": "decode of a 1B model from a graph, of the measured bandwidth",
    "graph_over_eager": "graph against single launches, 135M",
    "prefill_of_products": "prefill of a 1B model, of the 16-bit product",
}


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All benchmark records of a folder, in order of name. Raises FormatError for a file that is none."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            kind = record["kind"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path} is no record of a GPU: {type(error).__name__}: {error}") from None
        if kind == "bench" and record["environment"].get("gpu"):
            records.append(record)
    return records


def lines(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The Markdown of all records, one after the other."""
    if not records:
        yield NOTHING
    for record in records:
        yield from _of_record(record)


def _of_record(record: Mapping[str, Any]) -> Iterator[str]:
    environment = record["environment"]
    gpu, packages = environment.get("gpu"), environment.get("packages", {})
    name = gpu["name"] if gpu else record["device"]
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    yield f"### {name}"
    yield ""
    yield f"{environment['time'][:10]}, commit {environment.get('commit')}, Python {environment['python']}, {versions}."
    if ceilings := record.get("ceilings"):
        products = ", ".join(f"{kind} {rate / 1e12:,.1f}" for kind, rate in ceilings["flops_per_s"].items())
        yield (
            f"Ceilings: reading {ceilings['read_bytes_per_s'] / 1e9:,.0f} GB/s, copying "
            f"{ceilings['copy_bytes_per_s'] / 1e9:,.0f} GB/s, products {products} TFLOP/s; an array operation costs "
            f"{ceilings['launch_s'] * 1e6:.1f} us."
        )
    yield ""
    if facts := record.get("facts"):
        yield from _facts(facts)
    for model in record["models"].values():
        yield from _model(model, record["peers"].get(model["model"], {}), record.get("facts", {}))
    yield from _marks(record.get("marks", {}))
    for phase, entry in record["phases"].items():
        if "error" in entry:
            yield f"Failed: {phase}: {entry['error']}"
            yield ""


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    """The costs of a call, which decide the design."""
    yield "| call | on the GPU, us | on the host, us |"
    yield "|---|---|---|"
    for name, value in facts.items():
        if isinstance(value, dict) and "queue_us" in value:
            yield f"| {name.replace('_', ' ')} | {value['gpu_us']:.2f} | {value['queue_us']:.2f} |"
        elif name == "node_of_a_graph" and isinstance(value, dict):
            yield f"| a kernel in a graph | {value['node_us']:.2f} | |"
    yield ""


def launch_ceiling(launches: int, facts: Mapping[str, Any]) -> str:
    """What launching alone costs a step: the roof over a small model, whatever its arithmetic.

    >>> launch_ceiling(304, {"launch_of_a_kernel": {"gpu_us": 4.0, "queue_us": 5.0}, "node_of_a_graph": "no"})
    '304 launches a decode step: 1.52 ms one by one'
    """
    words = [f"{launches} launches a decode step"]
    single, node = facts.get("launch_of_a_kernel"), facts.get("node_of_a_graph")
    if isinstance(single, dict):
        words.append(f"{three(launches * max(single['queue_us'], single['gpu_us']) / 1e3)} ms one by one")
    if isinstance(node, dict):
        words.append(f"{three((launches * node['node_us'] + node['launch_us']) / 1e3)} ms from a graph")
    return words[0] + (": " + ", ".join(words[1:]) if words[1:] else "")


def _model(model: Mapping[str, Any], peer: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    theirs = peer.get("rows", {})
    who = f"transformers {peer['versions']['transformers']}" if theirs else "transformers"
    yield f"`{model['model']}`, {model['dtype']}, {launch_ceiling(model['launches_per_step'], facts)}."
    yield ""
    yield f"| step | ms | tok/s | of its ceiling | bound by | {who}, tok/s |"
    yield "|---|---|---|---|---|---|"
    for row in model["rows"]:
        if "error" in row:
            yield f"| {row['job']} | failed: {row['error']} | | | | |"
            continue
        other = theirs.get(_peer_job(row["job"]), {}).get("tokens_per_s")
        yield (
            f"| {row['job']} | {three(row['seconds'] * 1e3)} | {three(row['tokens_per_s'])} | {row['share']:.0%} | "
            f"{row['bound_by']} | {three(other) if other else peer.get('left_out', '')} |"
        )
    yield ""


def _peer_job(job: str) -> str:
    """The peer's name for a row: it has no graph, and was measured behind 512 tokens.

    >>> _peer_job("decode b8 @ 512, eager"), _peer_job("prefill 2048"), _peer_job("decode b1 @ 4096, graph")
    ('decode b8', 'pp2048', '')
    """
    if job.startswith("prefill "):
        return f"pp{job.removeprefix('prefill ')}"
    return job.partition(" @")[0] if "@ 512," in job else ""


def _marks(marks: Mapping[str, Any]) -> Iterator[str]:
    if not marks:
        return
    yield "| mark | must | reached |"
    yield "|---|---|---|"
    for name, mark in marks.items():
        reached = "not measured" if mark["reached"] is None else three(mark["reached"])
        yield f"| {MARK_NAMES[name]} | {three(mark['must'])} | {reached} |"
    yield ""


def with_table(text: str, records: Sequence[Mapping[str, Any]]) -> str:
    """RESULTS.md with the section under "GPU" made anew. Raises MiniferError where there is no such section."""
    before, found, after = text.partition(HEADING)
    if not found:
        raise MiniferError(f"there is no section {HEADING.strip()!r} to write the GPU's results into")
    rest = after.partition("\n## ")
    body = "\n".join(lines(records)).strip()
    return f"{before}{HEADING}\n{body}\n{rest[1]}{rest[2]}"


def main(words: Sequence[str]) -> int:
    """Print the table, or write it."""
    records = read_records(ROOT / RESULTS_FOLDER)
    if "--write" in words:
        new = with_table(RESULTS.read_text(encoding="utf-8"), records)
        with atomic_path(RESULTS) as temporary:
            temporary.write_text(new, encoding="utf-8")
    else:
        print("\n".join(lines(records)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
