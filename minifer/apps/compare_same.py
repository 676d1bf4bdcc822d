"""Did all servers do the same work? A comparison of speeds is worthless if one of them wrote less.

Two things are compared, answer by answer, with the first server. *How many tokens*, of the prompt and of the answer:
these must be equal. *Which text*, for greedy answers: it is nearly always equal at the start and may part later, since
two engines add up in different orders, and where two tokens are almost equally likely the last bit decides; from there
on the texts have nothing in common. So what is reported is how many answers are equal to the end, and how far the
others agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from statistics import median
from typing import Any

from minifer.apps.loadgen.record import Record

NEARLY = 0.25
"""Answers that agree, in the median, over less than this share of their text were not made by the same model."""


@dataclass(frozen=True)
class Same:
    """How one server's answers at one rate compare with the first server's; all counts are of `compared` answers."""

    server: str
    against: str
    compared: int
    equal_prompt_tokens: int
    equal_output_tokens: int
    equal_texts: int
    median_agreement: float | None

    @property
    def faults(self) -> list[str]:
        """What makes the comparison unfair, in words."""
        found = []
        for what, equal in (("prompt", self.equal_prompt_tokens), ("output", self.equal_output_tokens)):
            if equal < self.compared:
                words = f"{self.compared - equal} of {self.compared} answers differ from {self.against}'s"
                found.append(f"{self.server}: {words} in the number of {what} tokens")
        if self.median_agreement is not None and self.median_agreement < NEARLY:
            found.append(f"{self.server}: its texts agree with {self.against}'s over {self.median_agreement:.0%} only")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"faults": self.faults}


def agreement(one: str, other: str) -> float:
    """The share of the longer text up to which both are equal; 1 for equal texts.

    >>> agreement("a cat sat", "a cat ran"), agreement("", "")
    (0.6666666666666666, 1.0)
    """
    longer = max(len(one), len(other))
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return equal / longer if longer else 1.0


def same_work(records: Mapping[str, Sequence[Record]]) -> list[Same]:
    """Every server's answers at one rate against those of the first; answers that one of the two lacks are left out."""
    (first, reference), *others = records.items()
    found = []
    for name, answers in others:
        pairs = [(a, b) for a, b in zip(reference, answers, strict=False) if a.done and b.done]
        shares = [agreement(a.text, b.text) for a, b in pairs]
        found.append(
            Same(
                name,
                first,
                len(pairs),
                sum(a.prompt_tokens == b.prompt_tokens for a, b in pairs),
                sum(a.tokens == b.tokens for a, b in pairs),
                sum(a.text == b.text for a, b in pairs),
                median(shares) if shares else None,
            )
        )
    return found
