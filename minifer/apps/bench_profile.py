"""Profiles as text and as data: what `minifer bench micro --profile` prints.

A table for each test, with groups (linears, attention, head, elementwise, waiting, Python) and the parts within them,
their share of the step, and how many times the least possible they take.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from minifer.roofline.profile import GROUPS, Part, Profile


def profile_table(found: Profile, title: str) -> str:
    """A profile as a table: groups, and within them the parts."""
    lines = [
        f"{title}: {found.job.name}, one step {1e3 * found.plain_s:.3f} ms "
        f"(with timers {1e3 * found.timed_s:.3f} ms, {found.steps} steps)",
        f"  {'part':<14}{'calls':>7}{'ms':>11}{'share':>8}{'floor ms':>11}{'of floor':>10}",
    ]
    for group in GROUPS:
        parts = [part for part in found.parts if part.group == group]
        if not parts:
            continue
        lines.append(_line(group, parts, found, indent=2))
        if len(parts) > 1:
            lines += [_line(part.kind, [part], found, indent=4) for part in parts]
    lines.append(_line("step", list(found.parts), found, indent=2))
    return "\n".join(lines)


def _line(name: str, parts: Sequence[Part], found: Profile, indent: int) -> str:
    seconds, floor = sum(p.seconds for p in parts), sum(p.floor_s for p in parts)
    calls = sum(p.calls for p in parts)
    label, share = " " * indent + name, 100 * seconds / found.timed_s
    measured = f"{label:<16}{calls:>7.0f}{1e3 * seconds:>11.3f}{share:>6.1f} %"
    if not floor:
        return measured
    ratio = seconds / floor
    return f"{measured}{1e3 * floor:>11.3f}{ratio:>8.{0 if ratio >= 100 else 2}f} x"


def overhead_line(null: Profile, profiles: Sequence[Profile]) -> str:
    """The step overhead, as a share of the decode step of one sequence that was profiled."""
    waiting = sum(part.seconds for part in null.parts if part.kind == "waiting") / null.timed_s
    text = f"a decode step with null kernels: {1e6 * null.plain_s:.0f} us, {100 * waiting:.0f} % of it meetings"
    step = next((p.plain_s for p in profiles if p.job.n_gen and p.job.batch == 1), None)
    return text if step is None else f"{text}; overhead {100 * null.plain_s / step:.1f} % of the step"


def profile_object(found: Profile) -> dict[str, Any]:
    """A profile as data, all times in seconds per step."""
    parts = [asdict(part) | {"share": found.share(part), "ratio": part.ratio} for part in found.parts]
    return {
        "test": found.job.name,
        "steps": found.steps,
        "step_s": found.plain_s,
        "timed_step_s": found.timed_s,
        "floor_s": found.floor_s,
        "parts": parts,
    }
