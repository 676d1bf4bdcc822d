"""What each kernel must give: for every one a function that makes a case, and the shapes to try.

    for shape in SPECS["rms_norm"].shapes:
        case = make_case("rms_norm", Build("bfloat16"), shape, seed=3)

The command line, the tests without a GPU and the tests on one all use these. The expectations are NumPy in float64,
written from what the kernels' headers say and from nothing else. Shapes are asymmetric (9 query heads, 3 kv heads), and
go over the edges of blocks, warps and 16-byte loads.

Attention is in `kernel_specs_attention.py`, choosing a token in `kernel_specs_sampling.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minifer.apps.testing import kernel_specs_attention as attention
from minifer.apps.testing import kernel_specs_sampling as sampling
from minifer.apps.testing.kernel_case import Case, Launch, decode, encode, nothing
from minifer.apps.testing.kernel_sources import Build
from minifer.errors import UsageError

Shape = Mapping[str, Any]


@dataclass(frozen=True)
class Spec:
    """One kernel, or several that work together: how to make a case, and shapes, the first of which are quick."""

    make: Callable[[np.random.Generator, Build, Shape], Case]
    shapes: tuple[Shape, ...]
    about: str
    by_head: bool = False
    """Whether HEAD_DIM and GROUP matter to it."""


def make_case(name: str, build: Build, shape: Shape | None = None, seed: int = 0) -> Case:
    """A fresh case of the spec called `name`, by default in its first shape. Raises UsageError for an unknown one."""
    if name not in SPECS:
        raise UsageError(f"there is no kernel {name!r}: {', '.join(SPECS)}")
    spec = SPECS[name]
    return spec.make(np.random.default_rng([seed, len(name)]), build, shape or spec.shapes[0])


def embed(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """Rows of a table, the first, the last and one of them twice."""
    vocab, width, rows = shape["vocab"], shape["width"], shape["rows"]
    table = encode(rng.standard_normal((vocab, width)), build.dtype)
    tokens = np.array(rng.integers(0, vocab, rows), np.int32)
    tokens[-1], tokens[0] = 0, vocab - 1
    stream = nothing((rows, width), "float32")
    launch = Launch("embed", (rows,), (shape["block"],), ("table", "tokens", "stream", width))
    buffers = {"table": table, "tokens": tokens, "stream": stream}
    return Case("rows of the embedding", build, [launch], buffers, {"stream": decode(table)[tokens]})


def rms_norm(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """The norm of some rows, after what was pending has been added to them and to no others."""
    tokens, width, eps = shape["tokens"], shape["width"], 1e-5
    stream = rng.standard_normal((tokens, width)).astype(np.float32) * 3
    stream[0] *= 1e-3  # so small that eps matters
    gain = encode(rng.standard_normal(width) + 1, build.dtype)
    pending = encode(rng.standard_normal((tokens, width)), build.dtype) if shape.get("pending") else None
    bias = encode(rng.standard_normal(width), build.dtype) if shape.get("bias") else None
    rows = rng.permutation(tokens)[: shape["rows"]].astype(np.int32) if "rows" in shape else None
    chosen = np.arange(tokens) if rows is None else rows
    after = stream.astype(np.float64)
    if pending is not None:
        after[chosen] += decode(pending)[chosen] + (0 if bias is None else decode(bias))
    x = after[chosen]
    out = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * decode(gain)
    args = ("stream", "pending", "bias", "rows", "gain", "out", width, eps)
    launch = Launch("rms_norm", (len(chosen),), (shape["block"],), args)
    buffers = {"stream": stream, "pending": pending, "bias": bias, "rows": rows, "gain": gain,
               "out": nothing(out.shape, build.dtype)}  # fmt: skip
    return Case("root mean square norm", build, [launch], buffers, {"stream": after, "out": out})


def swiglu(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """silu(gate) * up, large gates of both signs among them."""
    rows, width, block = shape["rows"], shape["width"], shape["block"]
    gate_up = encode(rng.standard_normal((rows, 2 * width)) * 8, build.dtype)
    gate, up = decode(gate_up)[:, :width], decode(gate_up)[:, width:]
    launch = Launch("swiglu", (-(-width // block), rows), (block,), ("gate_up", "out", width))
    buffers = {"gate_up": gate_up, "out": nothing((rows, width), build.dtype)}
    return Case("gated activation", build, [launch], buffers, {"out": gate / (1 + np.exp(-gate)) * up})


def skinny_gemm(name: str) -> Callable[[np.random.Generator, Build, Shape], Case]:
    """The maker of cases for `skinny_gemm_b4` or `skinny_gemm_wide_b4`: rows from the name."""
    per_group, wide = int(name.rpartition("b")[2]), "wide" in name

    def make(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
        rows, outputs, inputs = shape["groups"] * per_group, shape["outputs"], shape["inputs"]
        x = encode(rng.standard_normal((rows, inputs)), build.dtype)
        weight = encode(rng.standard_normal((outputs, inputs)) / 8, build.dtype)
        bias = encode(rng.standard_normal(outputs), build.dtype) if wide and shape.get("bias") else None
        residual = rng.standard_normal((rows, outputs)).astype(np.float32) if wide and shape.get("residual") else None
        product = decode(x) @ decode(weight).T
        product += 0 if bias is None else decode(bias)
        product += 0 if residual is None else residual
        in_place = residual is not None and shape["residual"] == "in place"
        out = residual if in_place else nothing((rows, outputs), "float32" if wide else build.dtype)
        buffers = {"x": x, "weight": weight, "bias": bias, "residual": None if in_place else residual, "out": out}
        middle = ("bias", "out" if in_place else "residual") if wide else ()
        grid = (shape["groups"], -(-outputs // (shape["block"] // 32)))
        args = ("x", "weight", *middle, "out", outputs, inputs)
        launch = Launch(name, grid, (shape["block"],), args)
        return Case(f"a product of {per_group} rows at a time", build, [launch], buffers, {"out": product})

    return make


GEMM_SHAPES: tuple[Shape, ...] = (
    {"groups": 2, "outputs": 21, "inputs": 96, "block": 128, "bias": True, "residual": "in place"},
    {"groups": 1, "outputs": 1, "inputs": 8, "block": 128},
    {"groups": 3, "outputs": 10, "inputs": 577, "block": 64, "residual": "apart"},
    {"groups": 1, "outputs": 33, "inputs": 1536, "block": 256, "bias": True},
    {"groups": 1, "outputs": 5, "inputs": 3, "block": 32, "bias": True, "residual": "in place"},
)

SPECS: dict[str, Spec] = {
    "embed": Spec(
        embed,
        ({"vocab": 11, "width": 96, "rows": 5, "block": 64}, {"vocab": 3, "width": 33, "rows": 1, "block": 32},
         {"vocab": 40, "width": 576, "rows": 7, "block": 256}),
        "rows of the embedding table",
    ),
    "rms_norm": Spec(
        rms_norm,
        ({"tokens": 4, "width": 576, "block": 256, "pending": True, "bias": True, "rows": 3},
         {"tokens": 3, "width": 576, "block": 256},
         {"tokens": 1, "width": 1, "block": 32},
         {"tokens": 5, "width": 33, "block": 96, "pending": True},
         {"tokens": 3, "width": 2048, "block": 1024, "pending": True, "rows": 1}),
        "root mean square norm, after adding what is pending",
    ),
    "swiglu": Spec(
        swiglu,
        ({"rows": 3, "width": 300, "block": 256}, {"rows": 1, "width": 1, "block": 32},
         {"rows": 2, "width": 256, "block": 128}, {"rows": 5, "width": 1537, "block": 256}),
        "the gate of the feed-forward layer",
    ),
    **{
        name: Spec(skinny_gemm(name), GEMM_SHAPES, "a product for few rows: the weight is read once")
        for name in (f"skinny_gemm{wide}_b{n}" for wide in ("", "_wide") for n in (1, 2, 4, 8))
    },
    "rope_kv_write": Spec(attention.rope_kv_write, attention.ROPE_SHAPES, "bias, norm, rotation, cache", by_head=True),
    "paged_split": Spec(attention.paged_split, attention.DECODE_SHAPES, "decode attention, by stretches", by_head=True),
    "paged_combine": Spec(attention.paged_combine, attention.COMBINE_SHAPES, "stretches put together", by_head=True),
    "paged_attention": Spec(
        attention.paged_attention, attention.DECODE_SHAPES, "paged_split and paged_combine, one after the other",
        by_head=True,
    ),
    "flash_prefill": Spec(attention.flash_prefill, attention.PREFILL_SHAPES, "attention of a prompt", by_head=True),
    "argmax_advance": Spec(sampling.argmax_advance, sampling.ARGMAX_SHAPES, "the likeliest token, and a step on"),
    "sample_advance": Spec(sampling.sample_advance, sampling.SAMPLE_SHAPES, "a drawn token, and a step on"),
}  # fmt: skip
