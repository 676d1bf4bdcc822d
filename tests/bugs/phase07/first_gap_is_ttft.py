"""First gap is ttft."""

FILE = "minifer/metrics.py"
OLD = "itl=tuple(later - earlier for earlier, later in pairwise(stamps))"
NEW = "itl=tuple(later - earlier for earlier, later in pairwise([sent, *stamps]))"
TASKS = ("7.1",)
HINT = "The first token has no gap: what came before it is TTFT."
