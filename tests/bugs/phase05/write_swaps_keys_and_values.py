"""Write swaps keys and values."""

FILE = "minifer/kv_cache/store.py"
OLD = "k_TKD.transpose(1, 2, 0)\n        self._v[layer][:, slots] = v_TKD"
NEW = "v_TKD.transpose(1, 2, 0)\n        self._v[layer][:, slots] = k_TKD"
TASKS = ("5.1",)
HINT = "Keys into the keys."
