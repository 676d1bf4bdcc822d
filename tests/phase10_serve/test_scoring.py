"""The log-probability of a prompt equals what the textbook's forward pass says, however the prompt was cut."""

import numpy as np
import pytest

from minifer import LLM
from minifer.incremental import Incremental
from minifer.sampling import log_softmax
from tests.serving import running

TEXT = "Once upon a time, there was a small fish who wanted to see the sea. He asked his mother what it was."


@pytest.fixture(scope="module")
def expected():
    """`(ids, log-probability of each after the first)` from a single pass of the reference room."""
    with LLM("tiny", device="cpu", room="reference") as llm:
        ids = llm.encode(TEXT)
        logits = Incremental(llm.weights, llm.ops.new_store(1, len(ids)), llm.ops).step(ids, all_logits=True)
        rows = log_softmax(logits)
        return ids, rows[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("chunk", [8, 16, 17, 512])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_logprobs(expected, chunk, max_tokens):
    ids, logprobs = expected
    body = {"prompt": TEXT, "max_tokens": max_tokens, "echo": True, "logprobs": 2, "temperature": 0}
    engine = {"max_num_batched_tokens": chunk, "max_num_seqs": 4}
    with running(engine=engine) as server:
        server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1})  # now the prefix cache has it
        for _ in range(2):
            choice = server.post("/v1/completions", body).json()["choices"][0]
            check(choice, ids, logprobs, max_tokens)


def check(choice, ids, logprobs, max_tokens):
    found = choice["logprobs"]
    assert choice["text"].startswith(TEXT)
    assert "".join(found["tokens"][: len(ids)]) == TEXT
    assert {len(column) for column in found.values()} == {len(ids) + max_tokens}
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    np.testing.assert_allclose(found["token_logprobs"][1 : len(ids)], logprobs, rtol=1e-4, atol=1e-4)
    for token, logprob, top in zip(
        found["tokens"][1:], found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True
    ):
        assert len(top) == 2
        assert max(top.values()) >= logprob
        assert token not in top or top[token] == pytest.approx(logprob)


def test_scored_and_plain_prompts_share_a_step(server, expected):
    ids, logprobs = expected
    body = {"prompt": [TEXT, TEXT], "max_tokens": 3, "echo": True, "logprobs": 0, "temperature": 0, "n": 2}
    plain = server.post("/v1/completions", body | {"logprobs": None}).json()["choices"]
    scored = server.post("/v1/completions", body).json()["choices"]
    assert [c["text"] for c in scored] == [c["text"] for c in plain]
    for choice in scored:
        np.testing.assert_allclose(choice["logprobs"]["token_logprobs"][1 : len(ids)], logprobs, rtol=1e-4, atol=1e-4)


def test_a_prompt_of_one_token_has_nothing_to_score(server):
    body = {"prompt": [300], "max_tokens": 0, "echo": True, "logprobs": 1}
    found = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [None]
    assert len(found["tokens"]) == 1
    *chunks, _ = server.events("/v1/completions", {**body, "prompt": [300, 301]})
    tokens = [token for c in chunks for token in c["choices"][0]["logprobs"]["tokens"]]
    assert tokens == server_pieces(server, [300, 301])


def server_pieces(server, ids):
    return [server.post("/detokenize", {"tokens": [i]}).json()["content"] for i in ids]
