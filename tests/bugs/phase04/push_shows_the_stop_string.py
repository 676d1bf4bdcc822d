"""Push shows the stop string."""

FILE = "minifer/stop_strings.py"
OLD = 'self._held[:at], ""'
NEW = 'self._held[: at + len(self.stopped)], ""'
TASKS = ("4.4",)
HINT = "The text ends before the stop string."
