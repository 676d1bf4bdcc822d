"""Top k keeps ties."""

FILE = "minifer/sampling.py"
OLD = "level = np.flatnonzero(scores == cut)[: k - above.size]"
NEW = "level = np.flatnonzero(scores == cut)"
TASKS = ("4.1",)
HINT = "k means exactly k, also where several are equal."
