"""What the figures in diagrams/ show, in words: for readers who cannot see them, and for a search.

Every number comes from the figure's own data, so the words are never older than the picture.
"""

from minifer.apps.numerals import megabytes, three
from minifer.apps.view.trace_data import Data


def lifecycle(d: Data) -> str:
    """The states, and how often each arrow was taken."""
    waits = ", ".join(f"{row['id']} {three(row['queue'])} ms" for row in d["rows"] if (row["queue"] or 0) > 1)
    return (
        "Above, the states of a request: waiting, running (prefill, then decode), finished, and preempted, from "
        f"which it comes back. Below, {d['counts']['asked']} requests of one run on a time line of "
        f"{three(d['ms'])} ms: {d['counts']['preempted']} were preempted because no block was free and admitted "
        f"again later; before their prefill waited {waits}."
    )


def kv(d: Data) -> str:
    """How high the layers get."""
    top = max(sum(row["written"].values()) for row in d["rows"])
    held = max(row["held"] for row in d["rows"])
    return (
        f"The KV cache over time, a layer for each of {len(d['ids'])} requests. A layer begins as high as its "
        f"prompt, grows by {d['bytes_per_token']:,} bytes with every token and vanishes with the last. At most "
        f"{top} tokens ({megabytes(top * d['bytes_per_token'])}) are written; the blocks held, a dashed line "
        f"above, reach {held} tokens."
    )


def paged(d: Data) -> str:
    """Every table."""
    tables = "; ".join(f"{name}: {', '.join(str(cell['block']) for cell in row)}" for name, row in d["tables"].items())
    return (
        f"Block tables on the left, the pool of {len(d['pool'])} blocks on the right, in step {d['step']}. The "
        f"physical blocks of each request in logical order are {tables}. The first ones are the same: they hold "
        "the common system prompt once. The last block of a request is partly empty."
    )


def batching(d: Data) -> str:
    """Steps, empty seats, time."""
    static, continuous = d["static"], d["continuous"]
    seats = static["seat_steps"] + static["empty_seat_steps"]
    return (
        f"Eight answers of different lengths in {static['slots']} slots over time. Static batching, above: a slot "
        f"whose answer is done stays empty until the longest is done; {static['steps']} steps, "
        f"{static['empty_seat_steps']} of {seats} seat-steps empty, {three(static['ms'])} ms. Continuous "
        f"batching, below: the next request starts in the step after; {continuous['steps']} steps, "
        f"{three(continuous['ms'])} ms."
    )


def chunked(d: Data) -> str:
    """The worst gap and the price of a better one."""
    whole, parts = d["whole"], d["chunked"]
    return (
        f"Three streams and a prompt of {whole['prompt']} tokens, over time. Computed in one step, above, the "
        f"prompt makes every stream wait {three(whole['worst_itl'])} ms for one token. In {parts['chunks']} steps "
        f"of at most {parts['budget']} tokens, below, no stream waits longer than {three(parts['worst_itl'])} ms, "
        f"and the prompt's own first token comes after {three(parts['ttft'])} instead of {three(whole['ttft'])} "
        "ms."
    )


def ttft(d: Data) -> str:
    """Both requests."""
    alone, busy = d["alone"], d["busy"]
    return (
        f"Two requests as bars of time. Alone: prefill until the first token, TTFT {three(alone['ttft'])} ms, "
        f"then {len(alone['itl'])} gaps between tokens, ITL {three(alone['median_itl'])} ms in the median. In a "
        f"busy engine: {three(busy['queue'])} ms in the queue before the prefill, TTFT {three(busy['ttft'])} ms, "
        f"then {len(busy['itl'])} gaps of {three(busy['median_itl'])} ms in the median."
    )


def roofline(d: Data) -> str:
    """The two ceilings."""
    c = d["ceilings"]
    return (
        f"Roofline of {d['model']}, FLOP per second against FLOP per byte: a slope of "
        f"{three(c['read_bytes_per_s'] / 1e9)} GB/s meets a flat roof of {three(c['flops_per_s'] / 1e9)} GFLOP/s "
        f"at {three(c['ridge'])} FLOP per byte. Decode steps lie on the slope, prefill near the flat roof; each "
        f"of the {len(d['points'])} points was measured."
    )


def architecture(d: Data) -> str:
    """Every row, from the top."""
    rows: dict[int, list[str]] = {}
    for name, level in d["levels"].items():
        rows.setdefault(level, []).append(name)
    named = "; ".join(", ".join(rows[level]) for level in sorted(rows, reverse=True))
    return f"The parts of minifer from the top down, each importing only from rows below: {named}."
