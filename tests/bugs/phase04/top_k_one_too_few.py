"""Top k one too few."""

FILE = "minifer/sampling.py"
OLD = "cut = np.partition(scores, -k)[-k]"
NEW = "k = max(1, k - 1)\n    cut = np.partition(scores, -k)[-k]"
TASKS = ("4.1",)
HINT = "Count again: k of them stay."
