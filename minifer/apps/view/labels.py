"""Labels that do not lie on each other.

A label is tried at places around its point, near ones first, and takes the first place where it covers no other label,
no marker and no line. Where that is not right beside the point, a thin line leads to it.

Boxes are arrays `[n, 4]` of left, bottom, right, top in pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Boxes = np.ndarray

RINGS, DIRECTIONS, STEP_PT, PAD_PX = 9, 16, 9.0, 2.0
LEADER_FROM_RING = 1
RING_COST_PX = 0.01
ALONG_PX, THICK_PX = 6.0, 3.0


@dataclass(frozen=True)
class Label:
    """A text for the point (x, y) in data coordinates, whose marker has a radius in points."""

    x: float
    y: float
    text: str
    radius_pt: float = 4.0


def place(ax: "Axes", labels: Sequence[Label], taken: Boxes | None = None, size: float = 8) -> None:
    """Draw the labels inside the axes; boxes that are `taken` stay free. Call it when limits and layout are final."""
    px_per_pt = ax.figure.dpi / 72
    inside = boxes_of([ax])
    points = ax.transData.transform([(label.x, label.y) for label in labels])
    radii = np.array([[label.radius_pt * px_per_pt] for label in labels])
    markers = np.hstack([points - radii, points + radii])
    boxes = np.empty((0, 4)) if taken is None else taken
    for i, label in enumerate(labels):
        text = ax.annotate(label.text, (label.x, label.y), (0, 0), textcoords="offset points", fontsize=size,
                           ha="center", va="center", zorder=6, in_layout=False,
                           bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85})  # fmt: skip
        extent = text.get_window_extent()
        offsets, rings = _places(label.radius_pt, extent.width / px_per_pt, extent.height / px_per_pt)
        half = np.array([extent.width, extent.height]) / 2 + PAD_PX
        middles = points[i] + offsets * px_per_pt
        tries = np.hstack([middles - half, middles + half])
        others = np.vstack([boxes, np.delete(markers, i, axis=0)])
        outside = 4 * half[0] * half[1] - _overlaps(tries, inside).sum(axis=1)
        best = int(np.argmin(_overlaps(tries, others).sum(axis=1) + outside + RING_COST_PX * rings))
        text.set_position(tuple(offsets[best]))
        boxes = np.vstack([boxes, tries[best]])
        if rings[best] >= LEADER_FROM_RING:
            line = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.6, "shrinkA": 3, "shrinkB": label.radius_pt}
            ax.annotate("", (label.x, label.y), tuple(offsets[best]), textcoords="offset points", zorder=5,
                        arrowprops=line)  # fmt: skip


def along(ax: "Axes", x: Sequence[float], y: Sequence[float], thick_px: float = THICK_PX) -> Boxes:
    """Small boxes along a line through points in data coordinates, so that labels keep off it."""
    pixels = ax.transData.transform(list(zip(x, y, strict=True)))
    found = []
    for start, end in pairwise(pixels):
        count = max(1, math.ceil(math.dist(start, end) / ALONG_PX))
        found.append(start + np.linspace(0, 1, count + 1)[:, None] * (end - start))
    middles = np.vstack(found)
    return np.hstack([middles - thick_px, middles + thick_px])


def boxes_of(artists: Sequence[Any]) -> Boxes:
    """Where texts, legends or axes are."""
    extents = [artist.get_window_extent() for artist in artists]
    return np.array([[e.x0, e.y0, e.x1, e.y1] for e in extents]).reshape(-1, 4)


def name_slope(ax: "Axes", x: float, slope: float, words: str, color: str, size: float = 8) -> Boxes:
    """Write a name along the line y = slope * x of a logarithmic picture, starting above its point at x; returns the
    boxes that the name covers. Call it when limits and layout are final."""
    start, ahead = ax.transData.transform([(x, slope * x), (10 * x, 10 * slope * x)])
    angle = math.atan2(*(ahead - start)[::-1])
    text = ax.annotate(words, (x, slope * x), (0, 2), textcoords="offset points", color=color, fontsize=size, ha="left",
                       va="bottom", rotation=math.degrees(angle), rotation_mode="anchor", in_layout=False)  # fmt: skip
    height = size * ax.figure.dpi / 72
    length = math.hypot(*text.get_window_extent().size)
    lifted = start + np.array([0.0, height / 2])
    ends = ax.transData.inverted().transform([lifted, lifted + length * np.array([math.cos(angle), math.sin(angle)])])
    return along(ax, ends[:, 0].tolist(), ends[:, 1].tolist(), height / 2)


def _places(radius_pt: float, width: float, height: float) -> tuple[np.ndarray, np.ndarray]:
    """Offsets `[n, 2]` in points and their rings `[n]`; a wide label needs more room sideways than upwards."""
    rings = np.repeat(np.arange(RINGS), DIRECTIONS)
    angles = np.tile(np.arange(DIRECTIONS), RINGS) * (2 * math.pi / DIRECTIONS)
    reach = radius_pt + 2 + rings * STEP_PT
    return np.stack([np.cos(angles) * (reach + width / 2), np.sin(angles) * (reach + height / 2)], axis=1), rings


def _overlaps(a: Boxes, b: Boxes) -> np.ndarray:
    """The common area of each box of a with each of b: `[len(a), len(b)]`."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(high - low, 0, None)
    area: np.ndarray = sides[..., 0] * sides[..., 1]
    return area
