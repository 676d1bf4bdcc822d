"""What only a GPU can show: the kernels in NVIDIA's hands, real graphs, and what a decode step takes there.

    pytest --gpu --results FILE.json tests/phase09_gpu

runs these and every other test marked `gpu` (the room and the engine against the reference run there, too), and leaves
a record. Without a GPU they are skipped with the reason; `MINIFER_REQUIRE_GPU=1` forbids that.

The same cases run on the strict stand-in here, which shows that the tests themselves are sound.
"""

import numpy as np
import pytest

from minifer.apps.bench_gpu_model import GpuModel
from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.apps.testing.kernel_run import run_on_device
from minifer.apps.testing.kernel_sources import Build
from minifer.apps.testing.kernel_specs import SPECS, make_case
from minifer.device import select_device
from minifer.model.load import load_model
from minifer.ops.cuda_launch import DTYPES

needs_compiler = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))
DEVICES = (pytest.param("strict", marks=needs_compiler), pytest.param("cuda", marks=pytest.mark.gpu))
HEADS = ((64, 3), (64, 4), (128, 8), (16, 2), (80, 1), (128, 16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_kernel_gives_what_float64_gives(device, name, dtype, measured):
    """All shapes on a GPU, the first on the stand-in, which is the emulator in other clothes."""
    xp, spec = select_device(device).xp, SPECS[name]
    for head in HEADS if spec.by_head and device == "cuda" else HEADS[:1]:
        for number, shape in enumerate(spec.shapes if device == "cuda" else spec.shapes[:1]):
            outcomes = run_on_device(make_case(name, Build(dtype, *head), shape, seed=number), xp)
            worst = max((o.error / o.allowed for o in outcomes if o.allowed), default=0.0)
            measured("largest error, of what is allowed", worst, kernel=name, dtype=dtype, head=head, shape=number)
            assert not [str(outcome) for outcome in outcomes if not outcome.fine]


@pytest.fixture(scope="module", params=DEVICES)
def tiny(request):
    """The bundled model in float16, in two rooms: with graphs, and without."""
    return GpuModel(load_model("tiny"), select_device(request.param), "float16")


def test_a_graph_gives_what_single_launches_give(tiny, monkeypatch):
    """Token for token, in full and in padded buckets; from the third step on a graph is replayed."""
    found = {}
    batches, steps = ((1, 3, 8, 20), 12) if tiny.device.name.startswith("cuda") else ((1,), 1)
    for graphs in (True, False):
        room, kept = tiny.rooms[graphs], []
        decode = room.decode
        monkeypatch.setattr(room, "decode", lambda *args, d=decode, k=kept: k.append(d(*args)) or k[-1])
        for batch in batches:
            tiny.decode(batch, 20, steps, graphs=graphs)
        found[graphs] = [[token for token, _ in step] for step in kept]
        assert np.isfinite([logprob for step in kept for _, logprob in step]).all()
    assert found[True] == found[False]
    assert len(found[True]) == len(batches) * (steps + 4)


def test_a_step_is_as_many_launches_as_promised(tiny):
    """10 to a layer and 4 around them, without a graph; none of ours from one."""
    room = tiny.rooms[False]
    before, steps = room.kernels.launches, 1
    tiny.decode(1, 9, steps, graphs=False)
    assert room.kernels.launches - before == (10 * tiny.config.num_hidden_layers + 4) * (steps + 4)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False], ids=["graph", "eager"])
def test_a_step_takes_no_memory(graphs, measured):
    """Counted by CuPy's own hook: after the first steps, nothing is allocated on the device."""
    import cupy

    model = GpuModel(load_model("tiny"), select_device("cuda"), "float16")
    taken = []

    class Hook(cupy.cuda.MemoryHook):
        name = "counting"

        def malloc_preprocess(self, **facts):
            taken.append(facts)

    room, decode = model.rooms[graphs], model.rooms[graphs].decode
    calls = []

    def counted(*args):
        with Hook():
            result = decode(*args)
        calls.append(len(taken))
        return result

    room.decode = counted
    model.decode(2, 30, 6, graphs=graphs)
    measured("allocations by step", calls)
    assert calls[-1] == calls[3], "the last steps took memory"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_real_shape_runs_and_is_timed(dtype, measured):
    """SmolLM2-135M with random weights: prefill and decode; the numbers are recorded, and none is asserted."""
    model = GpuModel("random:smollm2-135m", select_device("cuda"), dtype)
    for batch in (1, 8, 32):
        for graphs in (True, False):
            seconds = model.decode(batch, 512, 16, graphs=graphs)
            way = "graph" if graphs else "eager"
            measured(f"decode b{batch} {way}, tok/s", batch / float(np.median(seconds)), dtype=dtype)
    seconds = model.prefill(512)
    measured("prefill 512, tok/s", 512 / float(np.median(seconds)), dtype=dtype)
    model.close()
    assert min(seconds) > 0
