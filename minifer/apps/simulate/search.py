"""`minifer simulate capacity`: from options to settings, and the table of what each can take."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from minifer.apps.serve.router import POLICIES
from minifer.apps.simulate.capacity import Setting, capacity, enough, guess_rate, settings
from minifer.apps.simulate.machine import Machine
from minifer.apps.workloads import Arrival
from minifer.errors import UsageError
from minifer.formats.atomic import Progress

MIN_PROMPTS = 200
"""Requests of a workload unless the rate asks for more."""

FEWEST = 20
"""Requests below which a share of them means nothing."""

FIRST_RATE = 1.0
"""Of the workload whose lengths give the first guess."""

Arrivals = Callable[[argparse.Namespace, int, float], Iterator[Arrival]]


def search(
    args: argparse.Namespace, machine: Machine, model: str, arrivals_of: Arrivals, progress: Progress | None
) -> dict[str, Any]:
    """Find the capacity of every setting that the options ask for. Raises UsageError for what makes no sense."""
    if not 0 < args.target <= 1:
        raise UsageError(f"--target is a share of the requests, above 0 and at most 1, not {args.target}")
    if args.dataset_name == "azure":
        raise UsageError("capacity varies the rate itself: use random, prefix_repetition or custom, not azure")
    least = MIN_PROMPTS if args.num_prompts is None else args.num_prompts
    if least < FEWEST:
        raise UsageError(f"--num-prompts {least} is too few to speak of shares: use at least {FEWEST}")

    def workload(rate: float) -> list[Arrival]:
        wanted = argparse.Namespace(**{**vars(args), "num_prompts": enough(rate, args.slo_ms, least)})
        try:
            return list(arrivals_of(wanted, machine.model.vocab_size, rate))
        except UsageError as error:
            if rate == FIRST_RATE:
                raise
            raise UsageError(f"to try {rate:,.0f} requests a second, {machine.name} needs too many: {error}") from None

    base = Setting(
        args.route,
        args.replicas,
        machine.config.max_num_batched_tokens,
        machine.config.block_size,
        machine.config.enable_prefix_caching,
    )
    choices = parse_choices(args.vary) if args.vary else default_choices(base)
    many = list(settings(base, choices, full=args.full))
    found = []
    if progress is not None:
        progress("settings", 0, len(many))  # the first may take a minute
    for done, setting in enumerate(many, 1):
        guess = guess_rate(machine, setting, workload(FIRST_RATE))
        best = capacity(machine, setting, workload, args.slo_ms, args.target, guess)
        found.append({**asdict(best.setting), "rate": best.rate, "attained": best.attained, "runs": best.runs})
        if progress is not None:
            progress("settings", done, len(many))
    about = {
        "model": model,
        "machine": machine.about,
        "name": machine.name,
        "slo_ms": args.slo_ms,
        "target": args.target,
        "dataset": args.dataset_name,
        "num_prompts": least,
        "seed": args.seed,
        "base": asdict(base),
    }
    return {"rows": found, "conditions": about}


def default_choices(base: Setting) -> dict[str, list[Any]]:
    """What is varied unless told otherwise."""
    return {
        "policy": list(POLICIES) if base.replicas > 1 else [],
        "replicas": [1, 2, 4, 8],
        "chunk": sorted({max(64, base.chunk // 4), base.chunk, 4 * base.chunk}),
        "block_size": [8, 16, 32],
        "prefix_caching": [True, False],
    }


def parse_choices(words: list[str]) -> dict[str, list[Any]]:
    """`replicas=1,2 prefix_caching=on,off` as lists of values. Raises UsageError.

    >>> parse_choices(["replicas=1,2", "prefix_caching=on"])
    {'replicas': [1, 2], 'prefix_caching': [True]}
    """
    found: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        try:
            found[name] = [_VALUES[name](value) for value in values.split(",")]
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"--vary {word!r}: use policy={','.join(POLICIES)}, replicas=1,2, chunk=256,512, block_size=8,16 or "
                f"prefix_caching=on,off"
            ) from error
    return found


def _policy(value: str) -> str:
    return POLICIES[POLICIES.index(value)]


def _count(value: str) -> int:
    if (number := int(value)) < 1:
        raise ValueError(value)
    return number


def _switch(value: str) -> bool:
    return {"on": True, "off": False}[value]


_VALUES: dict[str, Callable[[str], Any]] = {
    "policy": _policy,
    "replicas": _count,
    "chunk": _count,
    "block_size": _count,
    "prefix_caching": _switch,
}
