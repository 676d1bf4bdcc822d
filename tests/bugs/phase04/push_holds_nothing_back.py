"""Push holds nothing back."""

FILE = "minifer/stop_strings.py"
OLD = "keep = max((self._overlap(s) for s in self._stop), default=0)"
NEW = "keep = 0"
TASKS = ("4.4",)
HINT = "The end of the text may be the beginning of a stop string."
