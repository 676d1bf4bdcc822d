"""What `minifer export` writes, loaded by other engines: their logits against ours, and their tokens.

Needs peers (`--peers`; installed by the scripts in `tests/peers/`), and for SmolLM2 its weights (`--model`). Ours are
the logits of the model *before* it was exported, or a mistake that writing and reading share would not show; only where
the weights were rounded to bfloat16 are they those of the exported file.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from minifer.apps import bench_peers, export
from minifer.device import select_device
from minifer.formats.gguf import read_gguf
from minifer.incremental import Incremental
from minifer.model.load import load_model
from minifer.ops import open_room
from minifer.sampling import log_softmax
from minifer.tokenizer import Tokenizer

pytestmark = pytest.mark.peers

FAMILIES = ("llama2", "llama3", "smollm2", "mistral", "qwen2", "qwen3")
TEXTS = ("The capital of France is", "1, 2, 3, 4,", "def f(n):\n    return n\n", "naïve 🦙  x\t\t", "don't you've")

#: llama.cpp multiplies BF16 weights by activations that it rounds to BF16 too: three digits are left.
LOGPROB_TOLERANCE = {"F32": 2e-3, "BF16": 0.1}


def peer(name):
    """An installed peer, or a reason to skip."""
    found = {p.name: p for p in bench_peers.installed()}
    if name not in found:
        pytest.skip(f"{name} is not installed in {bench_peers.peers_home()}")
    return found[name]


def our_logits(model, ids):
    """Logits of every position by the reference room."""
    ops = open_room("reference", model.config, select_device("cpu"))
    sequence = Incremental(ops.prepare(model.weights), ops.new_store(1, len(ids)), ops)
    return np.array(sequence.step(ids, all_logits=True))


@pytest.fixture(scope="module")
def smollm2(request):
    """SmolLM2's ids and greedy tokens from the golden file, and its weights."""
    if not request.config.getoption("--model"):
        pytest.skip("needs --model")
    return load_model("smollm2-135m")


@pytest.fixture(scope="module")
def goldens(golden_path):
    return json.loads((golden_path / "smollm2.json").read_text("utf-8"))["prompts"]


# --- Hugging Face's form in transformers ------------------------------------------------------------------------------


def equal_in_transformers(work, tmp_path):
    """For each `name: (folder, ids, model)` transformers computes our logits; in one process, it starts slowly."""
    command = [*peer("transformers").command, "logits"]
    for name, (folder, ids, _) in work.items():
        command += [str(folder), ",".join(map(str, ids)), str(tmp_path / f"{name}.npy")]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    for name, (_, ids, model) in work.items():
        theirs = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(our_logits(model, ids), theirs, rtol=0, atol=2e-3, err_msg=name)


def rounded(model, path, dtype):
    """The model that was exported to `path`: itself, or with its weights in bfloat16."""
    return model if dtype == "F32" else load_model(path)


def test_families_in_transformers(tmp_path, golden_path):
    """All six, in both widths."""
    peer("transformers")
    work = {}
    for family in FAMILIES:
        folder = golden_path / "families" / family
        ids = json.loads((folder / "expected.json").read_text("utf-8"))["prompt_ids"]
        for dtype in ("F32", "BF16"):
            model, path = load_model(folder), tmp_path / f"{family}-{dtype}"
            export.export_hf(model, path, dtype)
            work[path.name] = (path, ids, rounded(model, path, dtype))
    equal_in_transformers(work, tmp_path)


def test_smollm2_in_transformers(tmp_path, smollm2, goldens):
    """The real weights, in both widths, at every position of a prompt."""
    peer("transformers")
    work = {}
    for dtype in ("F32", "BF16"):
        export.export_hf(smollm2, tmp_path / dtype, dtype)
        work[dtype] = (tmp_path / dtype, goldens[3]["prompt_ids"], rounded(smollm2, tmp_path / dtype, dtype))
    equal_in_transformers(work, tmp_path)


# --- GGUF in llama.cpp ------------------------------------------------------------------------------------------------


@contextmanager
def llama_server(model: Path, log: Path):
    """llama-server with this model on a free port, float32 cache: a function that posts JSON and returns JSON."""
    program = Path(peer("llama.cpp").command[-1]).parent / "bin" / "llama-server"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-np", "1", "--no-warmup"]
    words += ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", str(len(os.sched_getaffinity(0))), "-c", "256"]

    def post(path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
        return json.loads(urllib.request.urlopen(request, timeout=120).read())

    with log.open("w") as out, subprocess.Popen([str(program), *words], stdout=out, stderr=out) as process:
        try:
            _wait(process, port, log)
            yield post
        finally:
            process.kill()


def _wait(process, port, log):
    for _ in range(600):
        if process.poll() is not None:
            raise AssertionError(f"llama-server ended: {log.read_text()[-1500:]}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("llama-server does not answer")


def first_logprobs(post, ids, printable, count=20):
    """The likeliest tokens after a prompt, and their log-probabilities, by llama.cpp.

    The server keeps the answer back while it is half a character, so it is made to choose a printable token; that bias
    comes after the probabilities.
    """
    body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": count, "cache_prompt": False}
    found = post("/completion", body | {"logit_bias": [[printable, 100.0]]})
    top = found["completion_probabilities"][0]["top_logprobs"]
    return [one["id"] for one in top], np.array([one["logprob"] for one in top])


def agree(post, path, model, ids, tolerance):
    """The same likeliest token where it is clear, and the same log-probabilities."""
    ours = log_softmax(our_logits(model, ids)[-1])
    their_ids, theirs = first_logprobs(
        post, ids, printable=read_gguf(path).metadata["tokenizer.ggml.tokens"].index("A")
    )
    np.testing.assert_allclose(ours[their_ids], theirs, rtol=0, atol=tolerance)
    best, second = np.sort(ours)[-2:][::-1]
    if best - second > 2 * tolerance:
        assert their_ids[0] == int(ours.argmax())


def with_a_merge(folder, copy):
    """The same model; llama.cpp refuses a vocabulary without a single merge, so one that never applies is added."""
    shutil.copytree(folder, copy)
    tokenizer = json.loads((copy / "tokenizer.json").read_text("utf-8"))
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"] or ["! !"]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    return copy


@pytest.mark.parametrize("family", FAMILIES)
def test_families_in_llama_cpp(family, tmp_path, golden_path):
    """Every family's GGUF file: names, row order, RoPE, biases, norms, window as llama.cpp reads them."""
    folder = golden_path / "families" / family
    ids = json.loads((folder / "expected.json").read_text("utf-8"))["prompt_ids"]
    path = tmp_path / "model.gguf"
    model = load_model(with_a_merge(folder, tmp_path / "hf"))
    export.export_gguf(model, path, "F32")
    # llama.cpp has no window for the architecture under which Mistral is filed, so it is compared within the window.
    ids = ids[: model.config.window() - 1]
    with llama_server(path, tmp_path / "log") as post:
        agree(post, path, model, ids, LOGPROB_TOLERANCE["F32"])


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_smollm2_in_llama_cpp(dtype, tmp_path, smollm2, goldens):
    """Log-probabilities after each prompt, 32 greedy tokens where the margin allows, and the tokens of texts."""
    path = tmp_path / "model.gguf"
    export.export_gguf(smollm2, path, dtype)
    tokenizer, model = Tokenizer.from_pretrained(path), rounded(smollm2, path, dtype)
    with llama_server(path, tmp_path / "log") as post:
        for golden in goldens[:4]:
            agree(post, path, model, golden["prompt_ids"], LOGPROB_TOLERANCE[dtype])
        for text in TEXTS:
            assert post("/tokenize", {"content": text, "add_special": False})["tokens"] == tokenizer.encode(text), text
        if dtype == "F32":
            body = {"n_predict": 32, "temperature": 0, "return_tokens": True, "cache_prompt": False}
            got = post("/completion", body | {"prompt": goldens[0]["prompt_ids"]})["tokens"]
            want = goldens[0]["greedy32"]
            clear = next((i for i, margin in enumerate(goldens[0]["margins"]) if margin < 1e-3), 32)
            end = want.index(smollm2.config.eos_token_ids[0]) if smollm2.config.eos_token_ids[0] in want else 32
            assert got[: min(clear, end)] == want[: min(clear, end)]
