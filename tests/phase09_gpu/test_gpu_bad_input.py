"""Phase 09: one clear line each for what may be wrong with a GPU, and never a silent step down to the CPU."""

import importlib
import types

import numpy as np
import pytest

from minifer import LLM
from minifer.apps.testing import kernel_cpu
from minifer.apps.testing.strict_machine import machine
from minifer.device import select_device
from minifer.errors import DeviceError, InvariantError, UnsupportedError, UsageError
from minifer.model.config import ModelConfig
from minifer.ops import cuda_launch, open_room
from minifer.ops.cuda_launch import Kernels
from minifer.ops.cuda_memory import Need, need_of
from tests.gpu_rooms import OnGpu, needs_compiler
from tests.models import BASE, CONFIGS, prompt_of


@pytest.fixture
def strict():
    return select_device("strict")


def fake_cupy(monkeypatch, **runtime):
    """A CuPy whose driver answers as told."""
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(**runtime)))
    original = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda n, *a: cupy if n == "cupy" else original(n, *a))


def test_no_cupy(monkeypatch):
    def refuse(name, *args):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(DeviceError, match=r"CuPy is not installed \(pip install .*\); use --device cpu"):
        select_device("cuda")


def test_no_driver(monkeypatch):
    def no_driver():
        raise RuntimeError("cudaErrorInsufficientDriver")

    fake_cupy(monkeypatch, getDeviceCount=no_driver)
    with pytest.raises(DeviceError, match=r"finds no usable NVIDIA driver .*InsufficientDriver"):
        LLM("tiny", device="cuda")


def test_no_such_gpu(monkeypatch):
    fake_cupy(monkeypatch, getDeviceCount=lambda: 2)
    with pytest.raises(DeviceError, match=r"no CUDA device 2: this machine has 2 \(cuda:0 to cuda:1\)"):
        select_device("cuda:2")


@needs_compiler
def test_no_compiler_for_the_stand_in(monkeypatch, strict):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceError, match="needs a C\\+\\+ compiler, and there is no 'no-such-compiler'"):
        open_room("cuda", CONFIGS["llama2"], strict)


def test_an_old_gpu(monkeypatch, strict):
    monkeypatch.setattr(strict.xp.cuda.Device, "compute_capability", "75")
    with pytest.raises(DeviceError, match=r"compute capability 7\.5, and bfloat16 needs 8\.0: use another --dtype"):
        open_room("cuda", CONFIGS["llama2"], strict, dtype="bfloat16")
    monkeypatch.setattr(strict.xp.cuda.Device, "compute_capability", "61")
    with pytest.raises(DeviceError, match=r"compute capability 6\.1, and float32 needs 7\.0"):
        open_room("cuda", CONFIGS["llama2"], strict)


@needs_compiler
def test_a_kernel_that_does_not_compile(monkeypatch, strict, tmp_path):
    for path in cuda_launch.kernel_files():
        (tmp_path / path.name).write_text(
            path.read_text(encoding="utf-8").replace("size_t row = ", "size_t row = no_such_")
        )
    monkeypatch.setattr(cuda_launch, "KERNELS", tmp_path)
    cuda_launch.kernel_source.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"kernels do not compile for float32: .*\.cu:\d+:.* error: "):
            open_room("cuda", CONFIGS["llama2"], strict)
    finally:
        monkeypatch.undo()
        cuda_launch.kernel_source.cache_clear()


def test_cudas_headers_are_missing(monkeypatch, strict):
    """CuPy can be installed without them."""

    def refuse(self, log_stream=None):
        raise RuntimeError('x.cu(12): catastrophic error: cannot open source file "cuda_bf16.h"\n\n1 error detected')

    monkeypatch.setattr(strict.xp.RawModule, "compile", refuse)
    with pytest.raises(DeviceError, match=r'"cuda_bf16.h"; CUDA\'s headers are missing: .* pip install') as caught:
        open_room("cuda", CONFIGS["llama2"], strict, dtype="bfloat16")
    assert "\n" not in str(caught.value)


@needs_compiler
def test_too_little_memory(monkeypatch):
    """Every number, before anything is loaded."""
    monkeypatch.setattr(machine, "free_bytes", 40_000_000)
    machine.reset()
    with pytest.raises(DeviceError) as caught:
        LLM("tiny", device="strict", dtype="float32", num_blocks=64)
    message = str(caught.value)
    assert message.startswith("strict has 40.0 MB free of 8,589.9, and this needs ")
    for part in ("weights 2.", "(float32)", "KV cache 1.7 (64 blocks of 16 tokens)", "activations", "--num-blocks"):
        assert part in message
    assert "\n" not in message
    assert machine.uploads == 0


def test_what_is_needed_is_what_is_taken():
    """Weights by count; cache by kv heads, with the rotations beside it; buffers by the largest step."""
    config = ModelConfig(**BASE | {"num_hidden_layers": 2})  # 8 heads of 6 in pairs of 4, hidden 40, F 56, V 61
    need = need_of(config, parameters=1000, slots=32, rows=16, logit_rows=3, itemsize=2)
    assert need.weights == 2000
    assert need.cache == 2 * 2 * 32 * 2 * 6 * 2 + 4 * 6 * 32
    buffers = 16 * (4 * 40 + 2 * (40 + 72 + 48 + 48 + 112 + 56)) + 8 * 61 * 4
    products = 2 * 16 * (112 + 40) * 2
    assert need.activations == buffers + products + (32 << 20)
    assert Need(1, 2, 3).total == 6


def test_heads_that_do_not_fit(strict):
    for change, words in (({"head_dim": 256}, "heads of 256"), ({"num_attention_heads": 34}, "groups of 17")):
        with pytest.raises(UnsupportedError, match=words):
            open_room("cuda", ModelConfig(**BASE | change), strict)


def test_dtypes(strict):
    with pytest.raises(UsageError, match="unknown dtype 'float64': use one of float16, bfloat16, float32"):
        open_room("cuda", CONFIGS["llama2"], strict, dtype="float64")
    with pytest.raises(UnsupportedError, match="dtype 'float16' is not supported by the room 'cpu'"):
        LLM("tiny", device="cpu", room="cpu", dtype="float16")


def test_a_cupy_without_bfloat16(monkeypatch, strict):
    def refuse(shape, dtype=float):
        raise TypeError("data type not understood")

    monkeypatch.setattr(strict.xp, "zeros", refuse, raising=False)
    with pytest.raises(DeviceError, match="no bfloat16: use CuPy 14 or later, or --dtype float16"):
        open_room("cuda", CONFIGS["llama2"], strict, dtype="bfloat16")


@needs_compiler
def test_a_sequence_longer_than_model_and_cache():
    model = OnGpu(CONFIGS["llama2"], "float32", "strict")
    store = model.store(2, 4)
    with pytest.raises(UsageError, match="9 tokens exceeds the 8 positions"):
        model.logits([(prompt_of(model.config, 9), 0, [0, 1, 1])], store)


@needs_compiler
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (lambda xp: (xp.zeros((2, 8), np.float32),), "takes 3 arguments, not 1"),
        (lambda xp: (xp.zeros((2, 8), np.float16), xp.zeros((2, 4), np.float32), 4), "gate_up is a contiguous float32"),
        (lambda xp: (xp.zeros((8, 2), np.float32).T, xp.zeros((2, 4), np.float32), 4), "contiguous .* strides"),
        (
            lambda xp: (np.zeros((2, 8), np.float32), xp.zeros((2, 4), np.float32), 4),
            "array on the device, not ndarray",
        ),
        (lambda xp: (xp.zeros((2, 8), np.float32), xp.zeros((2, 4), np.float32), xp.zeros(1)), "width is a number"),
    ],
)
def test_the_launch_wrapper_checks_every_argument(strict, args, message):
    """What CuPy would run without a word, with a wrong answer."""
    kernels = Kernels(strict.xp, "float32", 6, 3)
    with pytest.raises(InvariantError, match=message):
        kernels("swiglu", (1, 2), 32, *args(strict.xp))
    assert kernels.launches == 0


@needs_compiler
def test_the_launch_wrapper_makes_numbers_fit(strict):
    """A Python int becomes the kernel's int, and a null pointer stays one."""
    kernels = Kernels(strict.xp, "float32", 6, 3)
    x, out = strict.asarray(np.full((1, 4), 3.0, np.float32)), strict.xp.zeros((1, 4), np.float32)
    kernels("rms_norm", (1,), 32, x, None, None, None, strict.asarray(np.ones(4, np.float32)), out, 4, 0.0)
    np.testing.assert_allclose(out.get(), np.ones((1, 4)), rtol=1e-6)
    assert kernels.launches == 1


def test_why_no_compiler_names_the_system(monkeypatch):
    monkeypatch.setattr(kernel_cpu.platform, "system", lambda: "Windows")
    assert "needs Linux (on Windows: WSL), and this is Windows" in kernel_cpu.why_no_compiler()
