"""The eight figures of the documentation: name, title, words for those who cannot see it, sources, numbers, drawing.

The words are made from the same numbers as the picture, so a new recording changes both. `minifer diagrams` writes the
folder: an SVG and a PNG of each, its numbers as `data/NAME.json`, the list with all words as `ALT.md` and as
`figures.json`, which also says which versions drew. Two kinds of drift are found by `--check`: numbers that no longer
follow from the traces (anywhere), and bytes of the SVG files (only where the versions are those that are written down,
since every version of matplotlib draws a little differently).
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps.view import diagrams_boxes, diagrams_data, diagrams_draw, diagrams_words
from minifer.apps.view.figure_style import caption, save, source, style
from minifer.apps.view.trace_data import Data
from minifer.apps.view.trace_model import Trace, load
from minifer.errors import FormatError, UsageError
from minifer.formats.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = ("svg", "png")
MANIFEST, WORDS = "figures.json", "ALT.md"


@dataclass(frozen=True)
class Diagram:
    """One figure: `data` makes its numbers from the sources, `draw` the picture, `words` the text beside it."""

    name: str
    title: str
    sources: tuple[str, ...]
    data: Callable[[Mapping[str, Any]], Data]
    draw: Callable[[Data], "Figure"]
    words: Callable[[Data], str]


def _draw_roofline(report: Mapping[str, Any], _: Data) -> "Figure":
    from minifer.apps.view.roofline_figures import draw_roofline

    return draw_roofline(report)


def diagrams(package: Path) -> tuple[Diagram, ...]:
    """All of them, in the order of the documentation. `package` is the folder whose imports are drawn."""
    d, w, b, words = diagrams_data, diagrams_draw, diagrams_boxes, diagrams_words
    return (
        Diagram("lifecycle", "The life of a request", ("blocks",), d.lifecycle, w.draw_lifecycle, words.lifecycle),
        Diagram("kv-growth", "How the KV cache grows", ("continuous",), d.kv_growth, w.draw_kv_growth, words.kv),
        Diagram("paged", "From logical to physical blocks", ("blocks",), d.paged, b.draw_paged, words.paged),
        Diagram("batching", "Static and continuous batching", ("static", "continuous"), d.batching, w.draw_batching,
                words.batching),
        Diagram("chunked", "Chunked prefill", ("whole", "chunked"), d.chunked, w.draw_chunked, words.chunked),
        Diagram("roofline", "The roofline", ("roofline",), lambda s: d.roofline(s["roofline"]), _no_report,
                words.roofline),
        Diagram("ttft-itl", "TTFT and ITL", ("one", "blocks"), d.ttft_itl, w.draw_ttft_itl, words.ttft),
        Diagram("architecture", "The parts of minifer", (), lambda _: d.architecture(package), b.draw_architecture,
                words.architecture),
    )  # fmt: skip


def _no_report(_: Data) -> "Figure":
    raise AssertionError("the roofline is drawn from its report, see `draw`")


def sources(folder: Path, names: set[str]) -> dict[str, Any]:
    """The traces and the roofline report of those names. Raises FormatError, or UsageError where one is missing."""
    found: dict[str, Any] = {}
    for name in sorted(names):
        path = folder / (f"{name}.json" if name == "roofline" else f"{name}.jsonl")
        if not path.is_file():
            raise UsageError(f"{path} is missing: the figures are drawn from the traces that come with a clone")
        if name != "roofline":
            found[name] = load(path)
            continue
        try:
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FormatError(f"{path} is not JSON: {error}") from None
    return found


def numbers(diagram: Diagram, found: Mapping[str, Any]) -> Data:
    """A figure's numbers as JSON will hold them (tuples are lists there)."""
    data: Data = json.loads(json.dumps(diagram.data(found)))
    return data


def draw(diagram: Diagram, found: Mapping[str, Any], data: Data) -> "Figure":
    """The picture with its source below. Call it inside `style()`."""
    make = partial(_draw_roofline, found["roofline"]) if diagram.name == "roofline" else diagram.draw
    figure = make(data)
    traces = [found[name] for name in diagram.sources if isinstance(found[name], Trace)]
    if traces:
        caption(figure, source(traces[0]))
    return figure


def versions() -> dict[str, str]:
    """What decides about the bytes of an SVG."""
    import matplotlib
    from matplotlib import ft2font

    return {"matplotlib": matplotlib.__version__, "freetype": ft2font.__freetype_version__,
            "machine": f"{platform.system()} {platform.machine()}"}  # fmt: skip


# ---- writing and checking the folder ---------------------------------------------------------------------------------


def write(out: Path, traces: Path, package: Path, bar: Callable[[Sequence[Diagram]], Iterable[Diagram]]) -> list[Path]:
    """Draw everything into a folder; returns the files. `bar` hands the figures through, one by one."""
    every = diagrams(package)
    found = sources(traces, {name for diagram in every for name in diagram.sources})
    written: list[Path] = []
    entries: dict[str, Data] = {}
    for diagram in bar(every):
        data = numbers(diagram, found)
        words = diagram.words(data)
        with style():
            figure = draw(diagram, found, data)
            files = [save(figure, out / f"{diagram.name}.{end}", diagram.title, words) for end in ENDINGS]
        written += [*files, _write_text(out / "data" / f"{diagram.name}.json", _as_text(data))]
        digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
        entries[diagram.name] = {"title": diagram.title, "alt": words, "sources": list(diagram.sources),
                                 "svg_sha256": digest}  # fmt: skip
    manifest = json.dumps({"drawn_with": versions(), "figures": entries}, indent=1, ensure_ascii=False) + "\n"
    return [*written, _write_text(out / MANIFEST, manifest), _write_text(out / WORDS, _alt_text(entries))]


def drift(out: Path, traces: Path, package: Path) -> Iterator[str]:
    """What in a folder is no longer what would be written, one sentence each. Bytes count only where the versions are
    those of the manifest."""
    every = diagrams(package)
    found = sources(traces, {name for diagram in every for name in diagram.sources})
    manifest = _manifest(out)
    pinned = manifest["drawn_with"] == versions()
    for diagram in every:
        data = numbers(diagram, found)
        kept = out / "data" / f"{diagram.name}.json"
        if not kept.is_file() or json.loads(kept.read_text(encoding="utf-8")) != data:
            yield f"{diagram.name}: its numbers in {kept.name} are not those of its sources"
            continue
        if manifest["figures"].get(diagram.name, {}).get("alt") != diagram.words(data):
            yield f"{diagram.name}: its words in {MANIFEST} are old"
        yield from _file_drift(out, diagram, found, data, manifest, pinned)
    if (out / WORDS).read_text(encoding="utf-8") != _alt_text(manifest["figures"]):
        yield f"{WORDS} is not what {MANIFEST} says"


def _file_drift(
    out: Path, diagram: Diagram, found: Mapping[str, Any], data: Data, manifest: Data, pinned: bool
) -> Iterator[str]:
    from minifer.apps.view.figure_style import svg_bytes

    missing = [end for end in ENDINGS if not (out / f"{diagram.name}.{end}").is_file()]
    if missing:
        yield f"{diagram.name}: there is no .{missing[0]} of it"
        return
    there = (out / f"{diagram.name}.svg").read_bytes()
    if hashlib.sha256(there).hexdigest() != manifest["figures"].get(diagram.name, {}).get("svg_sha256"):
        yield f"{diagram.name}.svg is not the file that {MANIFEST} names"
    elif pinned:
        with style():
            if svg_bytes(draw(diagram, found, data), diagram.title, diagram.words(data)) != there:
                yield f"{diagram.name}.svg would be drawn differently now"


def _manifest(out: Path) -> Data:
    try:
        manifest: Data = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        if not {"drawn_with", "figures"} <= manifest.keys():
            raise ValueError("it lacks `drawn_with` or `figures`")
    except OSError as error:
        raise UsageError(f"{out / MANIFEST} cannot be read ({error.strerror}): there is nothing to check") from None
    except (ValueError, AttributeError) as error:
        raise FormatError(f"{out / MANIFEST} is no list of figures: {error}") from None
    return manifest


def _as_text(data: Data) -> str:
    """JSON with a line for each entry, and for each row of a list: it can be read, and compared line by line."""
    entries = []
    for name, value in data.items():
        rows = [json.dumps(row, ensure_ascii=False) for row in value] if isinstance(value, list) else []
        text = "[\n  " + ",\n  ".join(rows) + "\n ]" if rows else json.dumps(value, ensure_ascii=False)
        entries.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _alt_text(entries: Mapping[str, Data]) -> str:
    lines = ["# The figures, in words", "",
             "Made by `minifer diagrams`. Whoever shows a figure takes its text as alt text.", ""]  # fmt: skip
    for name, entry in entries.items():
        made = ", ".join(f"`traces/{one}.{'json' if one == 'roofline' else 'jsonl'}`" for one in entry["sources"])
        lines += [f"## {entry['title']}: `{name}.svg`", "", entry["alt"], "", f"From {made or 'the imports'}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _write_text(path: Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
