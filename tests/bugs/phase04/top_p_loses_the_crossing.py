"""Top p loses the crossing."""

FILE = "minifer/sampling.py"
OLD = "np.count_nonzero(reached_before < p)"
NEW = "np.count_nonzero(reached_before + weights[order] <= p)"
TASKS = ("4.2",)
HINT = "The token that crosses p is kept."
