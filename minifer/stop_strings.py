"""Stop strings in streamed text: they may begin in one token and end in another."""

from collections.abc import Sequence


class StopStrings:
    """Watches streamed text for stop strings, which may begin in one token and end in another.

    `push` returns the text that is safe to show; what could still become a stop string is held back. Once one is
    found, `stopped` is that string and the text ends before it.

    >>> watch = StopStrings(["END"])
    >>> watch.push("one E"), watch.push("N"), watch.push("D two"), watch.stopped
    ('one ', '', '', 'END')
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Watch for any of `stop`; the first to be complete wins, the earlier start among those that are."""
        self._stop = tuple(stop)
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """The text to show after `text` was added; empty once stopped.

        >>> watch = StopStrings(["ab", "b!"])
        >>> watch.push("xa"), watch.push("cb"), watch.push("!!"), watch.push("more"), watch.stopped
        ('x', 'ac', '', '', 'b!')
        """
        if self.stopped is not None:
            return ""
        self._held += text
        found = [(self._held.index(s), s) for s in self._stop if s in self._held]
        if found:
            at, self.stopped = min(found)
            shown, self._held = self._held[:at], ""
            return shown
        keep = max((self._overlap(s) for s in self._stop), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        rest, self._held = self._held, ""
        return rest

    def _overlap(self, stop: str) -> int:
        """The length of the longest end of the held text that is a beginning of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
