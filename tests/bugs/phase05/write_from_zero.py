"""Write from zero."""

FILE = "minifer/kv_cache/store.py"
OLD = "self._k[layer][:, :, slots] = k"
NEW = "self._k[layer][:, :, : len(slots)] = k"
TASKS = ("5.1",)
HINT = "New rows go into their slots, not to the front."
