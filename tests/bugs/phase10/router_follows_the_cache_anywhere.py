"""The router follows the cache anywhere."""

FILE = "minifer/apps/serve/router.py"
OLD = "if load[best] - load[idlest] > self.max_imbalance:"
NEW = "if load[best] - load[idlest] > self.max_imbalance * self.num_replicas:"
TASKS = ("10.1",)
HINT = "A hit has a price in requests: max_imbalance, and no more."
