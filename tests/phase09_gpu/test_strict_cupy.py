"""Phase 09: the stand-in for CuPy refuses what a GPU would refuse, do wrong in silence, or wait for in silence."""

import numpy as np
import pytest

from minifer.apps.testing.strict_machine import CaptureError, StrictError, machine
from minifer.device import select_device
from tests.gpu_rooms import needs_compiler

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
}
"""


@pytest.fixture
def xp():
    return select_device("strict").xp


@pytest.fixture
def x(xp):
    return xp.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))


HOST = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    "mix",
    [
        lambda xp, x: x + HOST,
        lambda xp, x: HOST + x,
        lambda xp, x: np.exp(x),
        lambda xp, x: np.asarray(x),
        lambda xp, x: xp.exp(HOST),
        lambda xp, x: xp.concatenate([x, HOST]),
        lambda xp, x: x[np.array([0])],
        lambda xp, x: x.__setitem__(0, HOST[0]),
        lambda xp, x: x + None,
    ],
)
def test_host_and_device_do_not_mix(xp, x, mix):
    with pytest.raises(TypeError):
        mix(xp, x)


@pytest.mark.parametrize("name", ["errstate", "einsum_path", "partition_of_unity", "longdouble"])
def test_a_name_that_cupy_lacks(xp, name):
    with pytest.raises(AttributeError, match=name):
        getattr(xp, name)


def test_methods_and_keywords_that_cupy_lacks(xp, x):
    with pytest.raises(AttributeError, match="setfield"):
        x.setfield(0, np.int8)
    with pytest.raises(TypeError, match="where"):
        xp.sum(x, where=x > 0)
    with pytest.raises(TypeError, match="initial"):
        x.max(initial=0.0)


def test_indices_out_of_range_and_twice(xp, x):
    """CuPy wraps the first around and leaves the second to chance."""
    with pytest.raises(IndexError, match="wrap around"):
        x[xp.asarray(np.array([0, 3]))]
    with pytest.raises(StrictError, match="twice"):
        x[xp.asarray(np.array([1, 1]))] = 2.0
    x[xp.asarray(np.array([2, 0]))] = 2.0
    assert x.get()[:, 0].tolist() == [2.0, 4.0, 2.0]


def test_new_memory_is_poisoned(xp):
    assert np.isnan(xp.empty((2, 3), np.float32).get()).all()
    assert xp.empty(3, np.int32).get().tolist() == [-1, -1, -1]


def test_16_bit_products_have_two_dimensions_and_add_up_in_float32(xp):
    a = np.full((2, 4096), 1.0, np.float16)
    product = xp.asarray(a) @ xp.asarray(a).T
    assert product.dtype == np.float16
    assert product.get().tolist() == [[4096.0] * 2] * 2, "adding up in float16 would stop at 2048"
    with pytest.raises(StrictError, match="two dimensions"):
        xp.asarray(a[None]) @ xp.asarray(a.T)


@pytest.mark.parametrize(
    "wait",
    [float, int, bool, repr, lambda a: a.get(), lambda a: a.item(), lambda a: a.tolist()],
    ids=["float", "int", "bool", "repr", "get", "item", "tolist"],
)
def test_waiting_is_counted(xp, wait):
    single = xp.asarray(np.array(2.0, np.float32)).sum()
    machine.reset()
    wait(single)
    assert machine.syncs == 1


def test_a_boolean_mask_waits(xp, x):
    mask = x > 3
    machine.reset()
    x[mask]
    assert machine.syncs == 1


def test_launches_and_memory_are_counted(xp, x):
    machine.reset()
    y = xp.exp(x) + 1
    y.reshape(4, 3).T.reshape(12)  # only the last of these has to copy
    y += 1
    assert (machine.launches, machine.allocations, machine.syncs) == (4, 3, 0)


def test_page_locked_memory_is_what_lets_a_copy_go_on_alone(xp):
    """From ordinary memory the host stands by; and until it waits, what was fetched is rubbish."""
    stream, array = xp.cuda.Stream(non_blocking=True), xp.zeros(4, np.float32)
    xp.cuda.Device().synchronize()
    machine.reset()
    with stream:
        array.set(np.ones(4, np.float32), stream=stream)
        assert machine.syncs == 1
        locked = np.frombuffer(xp.cuda.alloc_pinned_memory(16), np.float32, 4)
        locked[:] = 3
        array.set(locked, stream=stream)
        array.get(stream=stream, out=locked, blocking=False)
        assert machine.syncs == 1
        assert np.isnan(locked).all()
        with pytest.raises(StrictError, match="page-locked"):
            array.get(out=np.zeros(4, np.float32), blocking=False)
    stream.synchronize()
    assert locked.tolist() == [3.0] * 4


def test_memory_is_page_locked_only_while_it_lives(xp):
    """Freed, its address is soon that of an ordinary array, which no longer counts as page-locked."""
    locked = np.frombuffer(xp.cuda.alloc_pinned_memory(16), np.float32, 4)
    part, place = locked[1:], (locked.ctypes.data, 16)
    del locked
    assert machine.is_pinned(part)
    assert place in machine.pinned
    del part
    assert place not in machine.pinned


def test_two_streams_need_an_event(xp, x):
    """Work of another stream that nobody has waited for may not have happened yet."""
    stream, event = xp.cuda.Stream(non_blocking=True), xp.cuda.Event()
    y = x + 1
    with stream, pytest.raises(StrictError, match="wait for its event"):
        y + 1
    event.record()
    with stream:
        stream.wait_event(event)
        z = y + 1
        event.record(stream)
    with pytest.raises(StrictError, match="wait for its event"):
        z + 1
    event.synchronize()
    assert (z + 1).get()[0, 0] == 3


def test_a_bare_event_is_waited_for_in_vain(xp):
    with pytest.raises(StrictError, match="never recorded"):
        xp.cuda.Event().synchronize()


@pytest.mark.parametrize(
    ("forbidden", "error"),
    [
        (lambda xp, x: x @ x.T, NotImplementedError),
        (lambda xp, x: x + 1, CaptureError),
        (lambda xp, x: x.get(), CaptureError),
        (lambda xp, x: x.set(HOST), CaptureError),
        (lambda xp, x: xp.zeros(3), CaptureError),
        (lambda xp, x: xp.empty(3), CaptureError),
        (lambda xp, x: xp.asarray(HOST), CaptureError),
        (lambda xp, x: xp.cuda.Event().record(), CaptureError),
    ],
)
def test_what_a_graph_cannot_hold(xp, x, forbidden, error):
    x.get()
    with xp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            with pytest.raises(error):
                forbidden(xp, x)
        finally:
            stream.end_capture()


def test_the_null_stream_is_not_recorded(xp):
    with pytest.raises(CaptureError, match="null stream"):
        xp.cuda.Stream.null.begin_capture()


@pytest.fixture
def scale(xp):
    return xp.RawModule(code=SOURCE).get_function("scale")


F, I4 = np.float32, np.int32


@needs_compiler
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (lambda x, y: (x, y, I4(12)), "takes 4 arguments"),
        (lambda x, y: (HOST, y, I4(12), F(2)), "address on the device"),
        (lambda x, y: (x, y, 12, F(2)), "long long"),
        (lambda x, y: (x, y, I4(12), 2.0), "double"),
        (lambda x, y: (x, y, np.int64(12), F(2)), "kind i4"),
        (lambda x, y: (x, y, x, F(2)), "C number"),
    ],
)
def test_wrong_arguments_of_a_kernel(xp, x, scale, args, message):
    with pytest.raises(StrictError, match=message):
        scale((1,), (32,), args(x, xp.zeros((3, 4), F)))


@needs_compiler
@pytest.mark.parametrize("wrong", [lambda x: x.astype(np.float16), lambda x: x.T, lambda x: x[:, :2]])
def test_wrong_arrays_of_a_kernel(xp, x, scale, wrong):
    """Another type, or gaps: a kernel sees nothing but the address."""
    with pytest.raises(ValueError, match="scale: x"):
        scale((1,), (32,), (wrong(x), xp.zeros((3, 4), F), I4(6), F(2)))


@needs_compiler
def test_a_graph_holds_addresses_and_not_values(xp, x, scale):
    """Replayed, it reads what is there now; and it does not keep what it reads alive."""
    y = xp.zeros((3, 4), F)
    x.get()
    with xp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        scale((1,), (32,), (x, y, I4(12), F(2)))
        graph = stream.end_capture()
        assert y.get().max() == 0, "recording runs nothing"
        machine.reset()
        graph.launch(stream=stream)
        assert (machine.launches, machine.graph_launches, machine.graph_nodes) == (0, 1, 1)
        assert y.get().max() == 22
        x.fill(5)
        graph.launch(stream=stream)
        assert y.get().tolist() == [[10.0] * 4] * 3


@needs_compiler
def test_a_graph_whose_memory_is_gone(xp, scale):
    y = xp.zeros(12, F)
    freed = xp.zeros(12, F)
    freed.get()
    with xp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        scale((1,), (32,), (freed, y, I4(12), F(2)))
        graph = stream.end_capture()
        del freed
        with pytest.raises(StrictError, match="freed"):
            graph.launch()
