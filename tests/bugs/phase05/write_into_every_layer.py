"""Write into every layer."""

FILE = "minifer/kv_cache/store.py"
OLD = "self._v[layer][:, slots] ="
NEW = "self._v[:, :, slots] ="
TASKS = ("5.1",)
HINT = "Only this layer."
