"""Figures regenerate from a stored measurement, byte for byte, and can be read."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from minifer.apps.cli import main
from minifer.apps.view import roofline_figures
from minifer.apps.view.labels import Label, place

STORED = Path(__file__).parent / "data" / "roofline.json"
"""A run on the two cores of a machine; the figures of any other run are drawn the same way."""
NAMES = ("latency", "roofline", "step-time", "weight-width")


@pytest.fixture(scope="module")
def report():
    return json.loads(STORED.read_text("utf-8"))


@pytest.fixture(scope="module")
def drawn(report, tmp_path_factory):
    """The figures of the stored measurement."""
    folder = tmp_path_factory.mktemp("figures")
    roofline_figures.draw_all(report, folder)
    return folder


def test_figures_regenerate_from_a_stored_measurement(drawn, tmp_path, capsys):
    """The same data gives the same bytes: SVG files carry no date and no random names."""
    assert main(["roofline", "--redraw", str(STORED), "--out", str(tmp_path / "new")]) == 0
    written = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert written == sorted(f"{name}.{ending}" for name in NAMES for ending in ("png", "svg"))
    assert "roofline.svg" in capsys.readouterr().out
    for name in NAMES:
        first = (drawn / f"{name}.svg").read_bytes()
        assert first == (tmp_path / "new" / f"{name}.svg").read_bytes()
        assert b"dc:date" not in first


def test_every_point_is_drawn_and_every_headline_has_its_share(report):
    with roofline_figures._style():
        figure = roofline_figures.draw_roofline(report)
    ax = figure.axes[0]
    assert len(ax.collections) == len(report["points"])
    texts = [t.get_text() for t in ax.texts]
    for point in roofline_figures.headline(report["points"]):
        assert any(point["op"] in t and f"{point['share']:.0%}" in t for t in texts)


@pytest.mark.parametrize("draw", ["draw_roofline", "draw_step_time", "draw_weight_width"])
def test_no_label_lies_on_another(report, draw):
    with roofline_figures._style():
        figure = getattr(roofline_figures, draw)(report)
    boxes = [t.get_window_extent() for t in figure.axes[0].texts if t.get_text() and t.get_rotation() == 0]
    assert boxes
    if legend := figure.axes[0].get_legend():
        boxes.append(legend.get_window_extent())
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
    inside = figure.bbox
    assert all(inside.x0 <= b.x0 and b.x1 <= inside.x1 and inside.y0 <= b.y0 and b.y1 <= inside.y1 for b in boxes)


def test_points_on_top_of_each_other_get_labels_side_by_side():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    figure.draw_without_rendering()
    place(ax, [Label(0.5, 0.5, f"label number {i}") for i in range(8)])
    boxes = [t.get_window_extent() for t in ax.texts if t.get_text()]
    assert len(boxes) == 8
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]


def test_a_figure_without_data_is_left_out(report, tmp_path):
    """Ctrl-C before the first decode step and the first request."""
    prefills = [row for row in report["steps"] if row["phase"] == "prefill"]
    written = roofline_figures.draw_all({**report, "requests": [], "steps": prefills}, tmp_path)
    assert {path.stem for path in written} == {"roofline"}


def test_colours_are_for_everybody_and_never_alone():
    """Okabe and Ito's, of different lightness; operations differ in shape."""

    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    prefill, decode = (lightness(c) for c in roofline_figures.PHASES.values())
    assert abs(prefill - decode) > 60
    assert len(set(roofline_figures.SHAPES.values())) == 3


def test_a_file_that_is_no_report_is_refused(tmp_path, capsys):
    for content in ("{", "[]", '{"model": {}}'):
        path = tmp_path / "some.json"
        path.write_text(content)
        assert main(["roofline", "--redraw", str(path), "--out", str(tmp_path)]) == 2
        assert "some.json" in capsys.readouterr().err
    assert main(["roofline", "--redraw", str(tmp_path / "missing.json")]) == 2


def test_a_system_without_a_load_average_is_told_in_words(report):
    """Windows has none."""
    from minifer.apps.roofline_cli import ceilings_in_words

    without = report | {"conditions": report["conditions"] | {"load_average": None}}
    assert "load average unknown" in " ".join(ceilings_in_words(without).split())
