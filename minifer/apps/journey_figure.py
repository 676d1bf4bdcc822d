"""The journey of one request as a picture: a time line, and each phase beside its ceiling.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; phases also differ by hatching. No text is in a
colour alone.
"""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps.journey import Journey

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY, BLUE, ORANGE, PALE = "#999999", "#0072B2", "#E69F00", "#F6D88F"
MOST_LABELS = 24
"""More tokens than this get no text under their bar: it could not be read."""


def draw(journey: Journey, path: Path) -> Path:
    """Write the picture as PNG and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    timeline, shares = figure.subplots(2, 1, height_ratios=(3, 2))
    _draw_timeline(timeline, journey)
    _draw_shares(shares, journey)
    figure.suptitle(f"{_short(journey.question)}   \u2192   {_short(journey.answer)}", fontsize=12)
    figure.supxlabel(_caption(journey), fontsize=8, color="#444444")
    figure.savefig(path, dpi=130, format="png")
    return path


def _draw_timeline(ax: "Axes", journey: Journey) -> None:
    """Tokenization, the prompt and every token of the answer on one line of milliseconds, with TTFT and ITL above."""
    times = [t * 1e3 for t in journey.token_times_s]
    tokenized, scheduled = journey.tokenize_s * 1e3, journey.scheduled_s * 1e3
    _bar(ax, 0, tokenized, GREY, label=f"tokenize, {tokenized:.2g} ms")
    if scheduled > tokenized:
        _bar(ax, tokenized, scheduled, "#DDDDDD", label=f"queue, {scheduled - tokenized:.2g} ms")
    _bar(ax, scheduled, times[0], BLUE, label=f"prefill, {journey.prefill.tokens} tokens", hatch="//")
    for index, (start, stop) in enumerate(pairwise(times)):
        label = f"decode, {len(times) - 1} tokens" if index == 0 else None
        _bar(ax, start, stop, (ORANGE, PALE)[index % 2], label=label)
    _label_tokens(ax, journey, times)
    _bracket(ax, 0, times[0], 0.62, f"TTFT {times[0]:,.0f} ms")
    if len(times) > 2:  # the first gap is left out, its bracket would touch that of TTFT
        gaps = journey.gaps_s
        middle = min(range(1, len(gaps)), key=lambda i: abs(gaps[i] - statistics.median(gaps)))
        _bracket(ax, times[middle], times[middle + 1], 0.62, f"ITL {statistics.median(gaps) * 1e3:.3g} ms")
    ax.set(ylim=(-1.1, 1.15), yticks=[], xlim=(0, times[-1] * 1.01), xlabel="milliseconds since the request was sent")
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.legend(loc="upper right", ncols=4, fontsize=8, frameon=False)


def _bar(ax: "Axes", start: float, stop: float, color: str, **options: Any) -> None:
    ax.barh(0, stop - start, left=start, height=0.8, color=color, edgecolor="white", linewidth=0.6, **options)


def _label_tokens(ax: "Axes", journey: Journey, times: list[float]) -> None:
    """Under the moment at which each token was there, its text."""
    if len(times) > MOST_LABELS:
        return
    pieces = list(journey.answer_pieces)
    if pieces and not pieces[-1] and journey.finish_reason == "stop":
        pieces[-1] = "(end)"
    for moment, piece in zip(times, pieces, strict=False):
        text = piece.replace("\n", "\\n").replace("$", r"\$")
        ax.annotate(text, (moment, -0.45), rotation=55, ha="right", va="top", fontsize=8)
        ax.plot([moment, moment], [-0.45, 0.4], color="black", linewidth=0.5)


def _bracket(ax: "Axes", start: float, stop: float, height: float, text: str) -> None:
    ax.plot([start, start, stop, stop], [height - 0.12, height, height, height - 0.12], color="black", linewidth=1)
    ax.annotate(text, ((start + stop) / 2, height + 0.05), ha="center", va="bottom", fontsize=9)


def _draw_shares(ax: "Axes", journey: Journey) -> None:
    """How much of its ceiling each phase reached."""
    phases = [p for p in (journey.decode, journey.prefill) if p is not None]
    for row, phase in enumerate(phases):
        prefill = phase.name == "prefill"
        ax.barh(
            row,
            100 * phase.share,
            color=BLUE if prefill else ORANGE,
            hatch="//" if prefill else None,
            edgecolor="white",
        )
        text = f"{phase.share:.0%}: {phase.speed_in_words()} ({phase.limiter})"
        inside = phase.share > 0.55
        place = (100 * phase.share - 1, "right") if inside else (100 * phase.share + 1, "left")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        ax.annotate(text, (place[0], row), ha=place[1], va="center", fontsize=9, bbox=box)
    ax.axvline(100, color="black", linestyle="--", linewidth=1)
    ax.set(yticks=range(len(phases)), yticklabels=[p.name for p in phases])
    ax.set(xlim=(0, max(105, *(100 * p.share * 1.05 for p in phases))), xlabel="share of the measured ceiling, %")
    ax.spines[["right", "top"]].set_visible(False)


def _caption(journey: Journey) -> str:
    c = journey.conditions
    parts = (journey.model, "float32", f"{journey.prompt_tokens} + {len(journey.token_times_s)} tokens")
    machine = (
        c.get("cpu"),
        f"{journey.ceilings.threads} threads",
        f"minifer {c.get('minifer')}",
        f"NumPy {c.get('numpy')}",
    )
    return ", ".join(str(part) for part in (*parts, *machine) if part)


def _short(text: str, width: int = 60) -> str:
    flat = " ".join(text.split()).replace("$", r"\$")
    return flat if len(flat) <= width else flat[: width - 3] + "..."
