"""Figures of a trace: their numbers, worked out by hand; their files, which repeat; and their readability."""

import re
from xml.etree import ElementTree

import pytest
from hand_trace import HEADER, as_file, closed, long_run, records

from minifer.apps.view import figure_style, trace_data, trace_figures
from minifer.apps.view.trace_block_figures import blocks_figure
from minifer.apps.view.trace_model import Trace, build, load


@pytest.fixture
def trace() -> Trace:
    return load(as_file(records()))


def states(bars: list[dict]) -> list[tuple]:
    return [(bar["state"], bar["start"], bar["end"]) for bar in bars]


def test_the_numbers_of_the_timeline(trace: Trace) -> None:
    data = trace_data.timeline(trace)
    assert [(bar["slot"], bar["id"], *states([bar])[0], bar["tokens"]) for bar in data["bars"]] == [
        (0, "a", "prefill", 0.0, 1000.0, 6),
        (0, "a", "decode", 1000.0, 2250.0, 2),
        (1, "b", "prefill", 1000.0, 1500.0, 1),
        (0, "b", "prefill", 2250.0, 3000.0, 2),
    ]
    assert (data["slots"], data["steps"], data["ms"], data["seat_steps"], data["empty_seat_steps"]) == (
        2,
        4,
        3000,
        5,
        0,
    )


def test_an_empty_seat_is_a_bar_of_its_own() -> None:
    data = trace_data.timeline(closed())
    assert [(b["slot"], b["start"], b["end"], b["steps"]) for b in data["bars"] if b["state"] == "empty seat"] == [
        (0, 1000.0, 3000.0, 2)
    ]
    assert (data["seat_steps"], data["empty_seat_steps"]) == (5, 2)
    assert "2 of 7 seat-steps empty" in trace_figures.timeline_words(data, "static")


def test_the_numbers_of_the_lives(trace: Trace) -> None:
    a, b = trace_data.requests(trace)["rows"]
    assert states(a["bars"]) == [("prefill", 0.0, 1000.0), ("decode", 1000.0, 2250.0)]
    assert states(b["bars"]) == [
        ("waiting", 500.0, 1000.0),
        ("prefill", 1000.0, 1500.0),
        ("preempted", 1500.0, 2250.0),
        ("prefill", 2250.0, 3000.0),
    ]
    assert (a["ttft"], a["itl"], a["worst_itl"], a["queue"]) == (1000.0, 625.0, 750.0, 0.0)
    assert (b["preempted"], b["tokens"], b["cached"], b["end"]) == ([1500.0], [1500.0, 3000.0], 4, 3000.0)


def test_who_never_ran_waits_to_the_end_of_the_record() -> None:
    lines = [*records()[:3], {**records()[3], "id": "c"}]
    assert states(trace_data.requests(build(lines))["rows"][1]["bars"]) == [("waiting", 500.0, 1000.0)]


def test_the_numbers_of_one_request(trace: Trace) -> None:
    data = trace_data.latency(trace, "b")
    assert (data["ttft"], data["queue"], data["prefill"], data["itl"], data["e2e"]) == (1000, 500, 500, [1500.0], 2500)
    assert [(t["time"], t["id"], t["piece"]) for t in data["tokens"]] == [(1000.0, 20, None), (2500.0, 21, None)]
    assert [(c["start"], c["end"], c["tokens"]) for c in data["chunks"]] == [(500.0, 1000.0, 1), (1750.0, 2500.0, 2)]
    assert trace_data.latency(trace)["tokens"][0]["piece"] == " seven"


def test_the_numbers_of_load_and_cache(trace: Trace) -> None:
    rows = trace_data.load(trace)["rows"]
    assert [(r["prefill"], r["decode"], r["running"], r["waiting"], r["preempted"]) for r in rows] == [
        (6, 0, 1, 0, 0), (1, 1, 2, 0, 0), (0, 1, 1, 1, 1), (2, 0, 1, 0, 0),
    ]  # fmt: skip
    cache = trace_data.cache(trace)
    assert [(r["id"], r["again"], r["found"], r["computed"]) for r in cache["rows"]] == [
        ("a", False, 0, 6), ("b", False, 4, 1), ("b", True, 4, 2),
    ]  # fmt: skip
    assert (cache["found"], cache["computed"], cache["hit_rate"]) == (8, 9, 0.4706)


def test_the_numbers_of_the_blocks(trace: Trace) -> None:
    data = trace_data.blocks(trace)
    holds = {(h["block"], h["id"], h["start"], h["end"]): h["fill"] for h in data["holds"]}
    assert holds == {
        (0, "a", 0.0, 2250.0): [[0.0, 0], [1000.0, 4]],
        (1, "a", 0.0, 2250.0): [[0.0, 0], [1000.0, 2], [1500.0, 3], [2250.0, 4]],
        (0, "b", 1000.0, 1500.0): [[1000.0, 4]],
        (2, "b", 1000.0, 1500.0): [[1000.0, 0], [1500.0, 1]],
        (0, "b", 2250.0, 3000.0): [[2250.0, 4]],
        (2, "b", 2250.0, 3000.0): [[2250.0, 0], [3000.0, 2]],
    }
    assert data["idle"] == [{"block": 1, "start": 2250.0, "end": 3000.0}]
    assert trace_data.shared_spans(data["holds"]) == [(0, 1000.0, 1500.0)]


@pytest.mark.parametrize("kind", trace_data.KINDS)
def test_every_figure_repeats_byte_for_byte_and_says_what_it_is(kind: str, trace: Trace) -> None:
    files = []
    for _ in range(2):
        figure = trace_figures.FIGURES[kind](trace)
        with figure_style.style():
            files.append(figure_style.svg_bytes(figure, "A <title>", "words & more"))
    assert files[0] == files[1]
    assert b"dc:date" not in files[0]
    root = ElementTree.fromstring(files[0])
    space = "{http://www.w3.org/2000/svg}"
    assert (root.findtext(f"{space}title"), root.findtext(f"{space}desc")) == ("A <title>", "words & more")
    assert root.get("role") == "img"


@pytest.mark.parametrize("kind", trace_data.KINDS)
@pytest.mark.parametrize("lines", [[HEADER], records()[:2], records()[:3]], ids=["nothing", "queued", "one step"])
def test_a_figure_of_hardly_anything(kind: str, lines: list[dict]) -> None:
    trace_figures.FIGURES[kind](build(lines)).draw_without_rendering()


def test_a_figure_of_a_thousand_requests() -> None:
    trace = build(long_run(1000, 64))
    for kind in ("timeline", "requests"):
        figure = trace_figures.FIGURES[kind](trace)
        assert figure.get_size_inches()[1] < 12
        figure.draw_without_rendering()


def test_everything_drawn_is_inside_and_no_two_words_overlap(trace: Trace) -> None:
    with figure_style.style():
        for figure in (trace_figures.requests_figure(trace), blocks_figure(trace)):
            figure.draw_without_rendering()
            legends = figure.legends + [ax.get_legend() for ax in figure.axes if ax.get_legend()]
            boxes = [item.get_window_extent() for item in legends]
            boxes += [text.get_window_extent() for text in figure.texts if text.get_text()]
            boxes += [ax.xaxis.label.get_window_extent() for ax in figure.axes if ax.get_xlabel()]
            whole = figure.bbox
            assert all(b.x0 >= whole.x0 - 1 and b.x1 <= whole.x1 + 1 and b.y0 >= whole.y0 - 1 for b in boxes)
            assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_colours_are_for_everybody_and_never_alone() -> None:
    """States that follow each other differ in lightness by much, or in hatching."""

    def lightness(colour: str) -> float:
        if not colour.startswith("#"):
            return 255.0
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    looks = list(figure_style.STATES.values())
    for i, one in enumerate(looks):
        for other in looks[:i]:
            assert one.hatch != other.hatch or abs(lightness(one.color) - lightness(other.color)) > 40
    assert all(re.fullmatch("#[0-9A-F]{6}", color) for color in figure_style.OWNERS)
