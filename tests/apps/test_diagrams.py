"""The figures in diagrams/: what they show, that they are up to date, and that they have words."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import house
import pytest

from minifer.apps.cli import main
from minifer.apps.diagrams_cli import FOLDER, PACKAGE
from minifer.apps.view import diagrams_book, diagrams_data
from minifer.apps.view.figure_style import style
from minifer.formats.trace_lines import read_trace

NAMES = {"lifecycle", "kv-growth", "paged", "batching", "chunked", "roofline", "ttft-itl", "architecture"}
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*?)([\w-]+)\.(?:png|svg)\)")


@pytest.fixture(scope="module")
def every():
    return {diagram.name: diagram for diagram in diagrams_book.diagrams(PACKAGE)}


@pytest.fixture(scope="module")
def found(every):
    return diagrams_book.sources(FOLDER / "traces", {name for one in every.values() for name in one.sources})


@pytest.mark.slow
def test_the_committed_figures_are_up_to_date(capsys):
    """Numbers everywhere; bytes where the versions are those of figures.json. The way out is `minifer diagrams`."""
    assert main(["diagrams", "--check"]) == 0, capsys.readouterr().out


def test_there_are_eight_with_title_and_words(every):
    manifest = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))
    assert every.keys() == manifest["figures"].keys() == NAMES
    words = (FOLDER / "ALT.md").read_text(encoding="utf-8")
    for name, entry in manifest["figures"].items():
        root = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
        texts = [root.findtext(f"{{http://www.w3.org/2000/svg}}{part}") for part in ("title", "desc")]
        assert texts == [entry["title"], entry["alt"]]
        assert 80 < len(entry["alt"]) < 600
        assert entry["alt"] in words
        assert (FOLDER / f"{name}.png").stat().st_size < 300_000


def test_traces_are_small_whole_and_say_where_they_come_from():
    files = sorted((FOLDER / "traces").glob("*.jsonl"))
    assert len(files) == 6
    for path in files:
        header = next(read_trace(path))
        assert path.stat().st_size < 40_000
        assert {"model", "scene", "scheduler", "cpu", "minifer", "numpy"} <= header["about"].keys()
        assert header["about"]["model"] == "smollm2-135m"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_figure_is_legible(name, every, found):
    """Seven or eight inches wide with letters of six points or more, and all of them inside."""
    with style():
        data = diagrams_book.numbers(every[name], found)
        figure = diagrams_book.draw(every[name], found, data)
        figure.draw_without_rendering()
    texts = [
        text for ax in figure.axes for text in (*ax.texts, ax.title, ax.xaxis.label, ax._left_title)
    ] + figure.texts
    shown = [text for text in texts if text.get_text()]
    assert figure.get_size_inches()[0] <= 8
    assert min(text.get_fontsize() for text in shown) >= 6
    whole = figure.bbox
    for box in (text.get_window_extent() for text in shown):
        assert whole.x0 - 1 <= box.x0
        assert box.x1 <= whole.x1 + 1
        assert whole.y0 - 1 <= box.y0
        assert box.y1 <= whole.y1 + 1


# ---- what they show --------------------------------------------------------------------------------------------------


def test_lifecycle_shows_everything_that_can_happen(found):
    data = diagrams_data.lifecycle(found)
    counts = data["counts"]
    assert counts["preempted"] >= 1
    assert counts["admitted"] == counts["asked"] + counts["preempted"]
    assert {bar["state"] for row in data["rows"] for bar in row["bars"]} >= {
        "waiting",
        "prefill",
        "decode",
        "preempted",
    }


def test_growth_never_exceeds_what_is_held_and_ends_with_the_answers(found):
    data = diagrams_data.kv_growth(found)
    assert data["bytes_per_token"] == 46_080
    assert all(sum(row["written"].values()) <= row["held"] for row in data["rows"])
    lives = {life.id: life for life in found["continuous"].lives}
    assert sum(len(lives[name].prompt) for name in data["rows"][0]["written"]) == sum(
        data["rows"][0]["written"].values()
    )
    assert max(len(row["written"]) for row in data["rows"]) == 4


def test_paged_agrees_with_the_pool(found):
    data = diagrams_data.paged(found)
    assert all(cell["owners"] for cell in data["pool"])
    for name, table in data["tables"].items():
        assert all(name in data["pool"][cell["block"]]["owners"] for cell in table)
        assert all(cell["used"] == data["block_size"] for cell in table[:-1])
    assert data["tables"][data["victim"]][-1]["used"] == data["block_size"]


def test_the_same_eight_requests_twice(found):
    data = diagrams_data.batching(found)
    prompts = [[life.prompt for life in found[name].lives] for name in ("static", "continuous")]
    outputs = [[life.token_ids for life in found[name].lives] for name in ("static", "continuous")]
    assert prompts[0] == prompts[1]
    assert outputs[0] == outputs[1]
    assert data["static"]["seat_steps"] == data["continuous"]["seat_steps"]
    assert data["static"]["empty_seat_steps"] > data["continuous"]["empty_seat_steps"] == 0
    assert data["static"]["steps"] > data["continuous"]["steps"]


def test_a_chunk_makes_nobody_wait_as_long_as_the_whole(found):
    data = diagrams_data.chunked(found)
    assert (data["whole"]["chunks"], data["chunked"]["chunks"]) == (1, 5)
    assert data["chunked"]["worst_itl"] < data["whole"]["worst_itl"]
    tokens = [life.token_ids for life in found["whole"].lives], [life.token_ids for life in found["chunked"].lives]
    assert tokens[0] == tokens[1]


def test_ttft_is_the_sum_of_its_parts(found):
    for one in diagrams_data.ttft_itl(found).values():
        assert one["ttft"] == pytest.approx(one["queue"] + one["prefill"], abs=0.002)
        assert one["e2e"] == pytest.approx(one["ttft"] + sum(one["itl"]), abs=0.05)


def test_architecture_is_what_the_imports_say(found):
    """Held against the test suite's own reader of imports, and against the layers."""
    data = diagrams_data.architecture(PACKAGE)
    layer = {name: place for place, names in enumerate(house.LAYERS) for name in names}
    real: dict[str, set[str]] = {name: set() for name in data["levels"]}
    for path in house.module_files(".", without=("data", "__main__.py", "__init__.py")):
        mine = house.module_name(path).split(".")[1]
        named = {name.split(".")[1] for _, name in house.imports_of(path) if name.count(".")}
        real[mine] |= named & real.keys() - {mine}
    assert layer.keys() == data["levels"].keys()
    for name, needed in data["imports"].items():
        assert set(needed) <= real[name]
        assert all(data["levels"][other] < data["levels"][name] for other in real[name])
        assert all(layer[other] <= layer[name] for other in needed)
        if name != "apps":  # whose texts name modules without importing them
            assert real[name] <= reached(name, data["imports"])


def reached(name: str, imports: dict[str, list[str]]) -> set[str]:
    below = set(imports[name])
    for other in imports[name]:
        below |= reached(other, imports)
    return below


# ---- drift -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The folder, in an environment that draws differently: only numbers, words and files are compared."""
    monkeypatch.setattr(diagrams_book, "versions", lambda: {"matplotlib": "0.1"})
    return Path(shutil.copytree(FOLDER, tmp_path / "diagrams"))


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    status = main(["diagrams", "--check", "--json", "-o", str(folder), "--traces", str(folder / "traces")])
    drift = json.loads(capsys.readouterr().out)["drift"]
    assert status == (1 if drift else 0)
    return drift


def test_another_trace_is_noticed(copy, capsys):
    shutil.copy(copy / "traces" / "blocks.jsonl", copy / "traces" / "one.jsonl")
    assert check(copy, capsys) == ["ttft-itl: its numbers in ttft-itl.json are not those of its sources"]


def test_a_picture_that_was_touched_is_noticed(copy, capsys):
    svg = copy / "paged.svg"
    svg.write_bytes(svg.read_bytes().replace(b"#0072b2", b"#0072b3", 1))
    (copy / "batching.png").unlink()
    assert check(copy, capsys) == [
        "paged.svg is not the file that figures.json names",
        "batching: there is no .png of it",
    ]


def test_words_that_are_old_are_noticed(copy, capsys):
    manifest = copy / "figures.json"
    old = manifest.read_text(encoding="utf-8").replace("Eight answers", "Nine answers")
    manifest.write_text(old, encoding="utf-8")
    assert check(copy, capsys) == [
        "batching: its words in figures.json are old",
        "ALT.md is not what figures.json says",
    ]


def test_bytes_count_only_where_the_versions_are_the_same(copy, capsys, monkeypatch):
    """Drawn by another matplotlib the bytes differ and the numbers do not."""
    monkeypatch.setattr("minifer.apps.view.figure_style.svg_bytes", lambda *_: b"other bytes")
    monkeypatch.setattr(diagrams_book, "draw", lambda *_: None)
    assert check(copy, capsys) == []
    pinned = json.loads((copy / "figures.json").read_text(encoding="utf-8"))["drawn_with"]
    monkeypatch.setattr(diagrams_book, "versions", lambda: pinned)
    assert len(check(copy, capsys)) == 8


def test_a_folder_without_sources_or_list(tmp_path, capsys):
    assert main(["diagrams", "--traces", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "come with a clone" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["diagrams", "--check", "-o", str(tmp_path)]) == 2
    assert "figures.json cannot be read" in capsys.readouterr().err
    (tmp_path / "figures.json").write_text("[]")
    assert main(["diagrams", "--check", "-o", str(tmp_path)]) == 2


@pytest.mark.slow
def test_drawing_writes_what_the_check_accepts(tmp_path, capsys):
    assert main(["diagrams", "-o", str(tmp_path), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == 8 * 3 + 2
    assert main(["diagrams", "-o", str(tmp_path), "--check"]) == 0
    assert not list(tmp_path.rglob("*.tmp"))


# ---- where they are shown --------------------------------------------------------------------------------------------


def test_whoever_shows_a_figure_says_in_words_what_it_shows():
    """Markdown of the repository, and of the notebooks: a picture of this folder has alt text worth hearing."""
    texts = [
        path.read_text(encoding="utf-8") for path in (*house.ROOT.glob("*.md"), *house.ROOT.glob("notebooks/*.md"))
    ]
    for path in house.ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    shown = [match for text in texts for match in PICTURE.findall(text) if "diagrams/" in match[1]]
    assert shown, "the README shows one"
    for alt, folder, name in shown:
        assert name in NAMES, f"{folder}{name} is no figure of this folder"
        assert len(alt) > 40, f"{name} is shown with the alt text {alt!r}"
