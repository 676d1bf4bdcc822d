"""What each operation adds to the `Meter`, from the arrays that are at hand, the same for every room.

Conventions: a multiply and an add are two FLOPs; every operand is read once and every result written once, at the
size it has in memory. Attention counts the pairs of query and key that may see each other, so causal attention is half
of the square, and reads keys and values by *kv* heads. Residual additions and the exponentials of softmax, together
under one per cent, are left out.

Nothing here looks at a `ModelConfig`: `model/cost.py` predicts these numbers from one, and a test compares the two.
"""

from typing import Any

from minifer.meter import Meter


def linear(meter: Meter | None, name: str, x: Any, *arrays: Any) -> None:
    """`x [T, in]` through matrices `[out, in]` and, also among `arrays`, biases `[out]`; None entries are absent."""
    if meter is None:
        return
    present = [array for array in arrays if array is not None]
    rows, out = x.shape[0], sum(a.shape[0] for a in present if a.ndim == 2)
    products = sum(2 * rows * a.size for a in present if a.ndim == 2)
    additions = sum(rows * a.size for a in present if a.ndim == 1)
    traffic = x.nbytes + sum(a.nbytes for a in present) + rows * out * x.itemsize
    meter.add(name, flops=products + additions, bytes=traffic, positions=rows)


def embed(meter: Meter | None, tokens: Any, embedding: Any) -> None:
    """A gather of T rows: no FLOPs; read and written once."""
    if meter is not None:
        rows = len(tokens)
        meter.add("embed", bytes=2 * rows * embedding.shape[1] * embedding.itemsize, positions=rows)


def norm(meter: Meter | None, x: Any, weight: Any) -> None:
    """Per element: square, add, scale, gain."""
    if meter is not None:
        meter.add("norm", flops=4 * x.size, bytes=2 * x.nbytes + weight.nbytes, positions=x.shape[0])


def rope(meter: Meter | None, q_THD: Any, k_TKD: Any) -> None:
    """Per pair of elements: four multiplies and two adds."""
    if meter is not None:
        meter.add("rope", flops=3 * (q_THD.size + k_TKD.size), bytes=2 * (q_THD.nbytes + k_TKD.nbytes),
                  positions=q_THD.shape[0])  # fmt: skip


def kv_write(meter: Meter | None, k_TKD: Any, v_TKD: Any) -> None:
    """Keys and values of T tokens, read and written once."""
    if meter is not None:
        meter.add("kv_write", bytes=2 * (k_TKD.nbytes + v_TKD.nbytes), positions=k_TKD.shape[0])


def attention(meter: Meter | None, q_THD: Any, k_KDS: Any, context: int, window: int) -> None:
    """One sequence: T queries, the last of them at position `context - 1`, each seeing at most `window` keys."""
    if meter is None:
        return
    length, heads, head_dim = q_THD.shape
    kv_heads = k_KDS.shape[0]
    pairs = visible_pairs(length, context, window)
    keys = min(context, window + length - 1)
    traffic = 2 * q_THD.size * q_THD.itemsize + 2 * keys * kv_heads * head_dim * k_KDS.itemsize
    meter.add("attention", flops=4 * heads * head_dim * pairs, bytes=traffic, positions=length)


def visible_pairs(length: int, context: int, window: int) -> int:
    """How many (query, key) pairs the last `length` of `context` tokens see, at most `window` keys each.

    >>> visible_pairs(3, 3, window=99), visible_pairs(1, 100, window=99), visible_pairs(3, 3, window=2)
    (6, 99, 5)
    """
    return sum(min(position + 1, window) for position in range(context - length, context))


def swiglu(meter: Meter | None, gated_TF: Any) -> None:
    """Per element: exp, add, divide, two multiplies; two arrays read, one written."""
    if meter is not None:
        meter.add("swiglu", flops=5 * gated_TF.size, bytes=3 * gated_TF.nbytes, positions=gated_TF.shape[0])
