"""What every notebook needs and no reader should have to look at twice: figures that can be read, and predictions.

A notebook shows its measurements with its own code, in its own cells. Only what would be the same thirty lines in all
of them is here: which model there is, the machine in four lines, a figure with its caption, a picture of boxes and
arrows, and a place where a prediction waits for its answer. `check` comes from `notebook_check.py`.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines differ in their dashes too, so that
nothing is said by colour alone.
"""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minifer.apps.notebook_check import check as check
from minifer.errors import DownloadError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"

DEFAULT_MODEL = "smollm2-135m"
MODEL_VARIABLE = "MINIFER_NOTEBOOK_MODEL"
"""Set to `tiny` or `random:<name>`, a notebook runs without the default model."""

DOTS_PER_INCH = 96

NOT_QUIET = 10
"""If the same measurement moves by more than this many percent, something else was using the machine."""


@dataclass(frozen=True)
class Models:
    """Which model writes the `text` of a notebook, and on which one time is measured (`speed`).

    They differ where the real weights cannot be had: then `tiny` writes, and random weights of the real shape are
    measured, since they take as long. `note` says so, and is empty where there is nothing to say.
    """

    text: str
    speed: str
    note: str = ""


def choose_models(wanted: str | None = None) -> Models:
    """The models of a notebook: `wanted`, or `MINIFER_NOTEBOOK_MODEL`, or SmolLM2, fetched if it is not there yet.

    Without a network and without SmolLM2 in the cache folder, `tiny` and random weights take its place.
    """
    from minifer import hub

    wanted = wanted or os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL
    if wanted == "tiny":
        return Models("tiny", "tiny", "All of it runs on `tiny`: its times are overhead, Python and small calls.")
    if wanted.startswith("random:"):
        return Models("tiny", wanted, f"`tiny` writes the text; times are those of {wanted}, real in shape only.")
    try:
        hub.locate(wanted)
    except DownloadError as error:
        note = f"{wanted} cannot be had ({error}). `tiny` writes the text; times are those of random weights."
        return Models("tiny", f"random:{wanted}", note)
    return Models(wanted, wanted)


def summary() -> None:
    """Print this machine in a few lines, with a warning if it is busy; `minifer doctor` has the rest."""
    print("\n".join(_summary_lines()))


def _summary_lines() -> list[str]:
    from minifer.apps import doctor

    report = doctor.examine()
    versions, cpu, memory = report["versions"], report["cpu"], report["memory"]
    words = versions["system"].split()
    threads = report["blas"][0]["num_threads"] if report["blas"] else "?"
    system = f"{words[0]} {words[-1]}"  # the release of the kernel in between is no condition of a measurement
    lines = [
        f"minifer {versions['minifer']}, Python {versions['python']}, NumPy {versions['numpy']}, {system}",
        f"CPU     {cpu['name']}, {cpu['usable_cores']} usable cores, BLAS threads: {threads}",
        f"memory  {memory['available_bytes'] / 1e9:.1f} of {memory['total_bytes'] / 1e9:.1f} GB available",
        f"GPU     {report['gpu'].get('name') or 'none, and none is needed here'}",
    ]
    load, cores = cpu["load_average"], cpu["usable_cores"] or 1
    if load is not None and load > cores / 2:
        lines.append(f"Machine not quiet: its load average is {load:.1f} on {cores} cores. Take no figure home.")
    return lines


def digits(value: float) -> str:
    """A number with three significant digits, for a person.

    >>> digits(0.012345), digits(98.76), digits(12345.6)
    ('0.0123', '98.8', '12,300')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def drift(before: float, after: float) -> None:
    """Print whether the machine stayed as it was: the same thing, measured before and after the others.

    >>> drift(80.0, 84.0)
    Measured again at the end: 84 after 80 (+5 %). The machine was quiet.
    >>> drift(80.0, 120.0)
    Measured again at the end: 120 after 80 (+50 %). Machine not quiet: take no figure home.
    """
    change = 100 * (after / before - 1)
    verdict = "The machine was quiet." if abs(change) <= NOT_QUIET else "Machine not quiet: take no figure home."
    print(f"Measured again at the end: {digits(after)} after {digits(before)} ({change:+.0f} %). {verdict}")


class Guesses:
    """Predictions, stored before their answers are known.

    >>> guesses = Guesses()
    >>> guesses.predict("how many", 10)
    how many: you predict 10. Now run on.
    >>> guesses.reveal("how many", 12.5)
    how many: you predicted 10, measured is 12.5, 1.25 times your prediction.
    >>> guesses.predict("how many", 12.5)
    how many: the answer is known already; your prediction was 10.
    """

    def __init__(self) -> None:
        """Nothing is predicted yet."""
        self._guesses: dict[str, float] = {}
        self._known: set[str] = set()

    def predict(self, question: str, guess: float | None) -> None:
        """Keep `guess`; None is no guess. Once the answer was shown, the first guess stands."""
        if question in self._known:
            kept = digits(self._guesses[question]) if question in self._guesses else "none"
            print(f"{question}: the answer is known already; your prediction was {kept}.")
        elif guess is None:
            print(f"{question}: no prediction yet. Put a number for None, run the cell again.")
        else:
            self._guesses[question] = float(guess)
            print(f"{question}: you predict {digits(guess)}. Now run on.")

    def reveal(self, question: str, measured: float) -> None:
        """Print the answer beside the guess."""
        self._known.add(question)
        guess = self._guesses.get(question)
        if guess is None:
            print(f"{question}: measured is {digits(measured)} (you made no prediction).")
            return
        ratio = f", {digits(measured / guess)} times your prediction" if guess else ""
        print(f"{question}: you predicted {digits(guess)}, measured is {digits(measured)}{ratio}.")


def style() -> None:
    """Set matplotlib's defaults: a readable size, few lines, and a cycle of colours that also differ in dashes."""
    import matplotlib as mpl
    from cycler import cycler

    colours = cycler(color=[BLUE, VERMILLION, GREEN, PURPLE, BLACK])
    dashes = cycler(linestyle=["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))])
    mpl.rcParams.update(
        {
            "axes.prop_cycle": colours + dashes,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "figure.figsize": (8, 3.8),
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "lines.linewidth": 2,
            "legend.frameon": False,
        }
    )


def show(figure: "Figure", caption: str, alt: str) -> None:
    """Display a figure with one visible sentence under it and a description (`alt`) for who cannot see it."""
    import matplotlib.pyplot as plt
    from IPython.display import Markdown, display

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    plt.close(figure)  # else the notebook would show it a second time, without its caption
    image = {"image/png": buffer.getvalue(), "text/plain": alt}
    display(image, metadata={"image/png": {"alt": alt}}, raw=True)
    display(Markdown(f"*{caption}*"))


def flow(steps: Sequence[tuple[str, str]], back: str) -> "Figure":
    """A row of boxes with arrows between them, and one arrow `back` from the last to the first.

    Each step is a title and a line of detail; a step whose title ends in `()` is something that acts, and is coloured.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import to_rgba

    figure, ax = plt.subplots(figsize=(2.2 * len(steps), 2.1))
    arrow = {"arrowstyle": "-|>", "color": BLACK, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.5}
    for x, (title, detail) in enumerate(steps):
        acts = title.endswith("()")
        fill = to_rgba(SKY, 0.45) if acts else "white"
        ax.add_patch(plt.Rectangle((x - 0.37, 0), 0.74, 1, edgecolor=BLACK, facecolor=fill, linewidth=1.5))
        ax.text(x, 0.66, title, ha="center", va="center", weight="bold", fontsize=10)
        ax.text(x, 0.3, detail, ha="center", va="center", fontsize=8.5)
        if x:
            ax.annotate("", (x - 0.37, 0.5), (x - 0.63, 0.5), arrowprops=arrow)
    last = len(steps) - 1
    ax.plot([last, last, 0], [0, -0.5, -0.5], color=BLACK, linewidth=1.5, linestyle="-")
    ax.annotate("", (0, 0), (0, -0.52), arrowprops=arrow)
    ax.text(last / 2, -0.56, back, ha="center", va="top", fontsize=10)
    ax.set(xlim=(-0.5, last + 0.5), ylim=(-0.95, 1.1))
    ax.axis("off")
    return figure
