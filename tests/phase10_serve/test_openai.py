"""OpenAI's language, byte by byte: what streams and what doesn't says the same, and errors are errors in its form."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from minifer.apps.serve.messages import Job
from minifer.apps.serve.worker import Answer
from minifer.sampling_params import SamplingParams
from minifer.scheduler.plan import TokenEvent
from minifer.scheduler.request import Request
from tests.serving import GREEDY, events_of

STORY = {"prompt": "Once upon a time", **GREEDY}
TALK = {"messages": [{"role": "user", "content": "Hello, who are you?"}], **GREEDY}


def test_a_completion_says_what_it_cost(server):
    body = server.post("/v1/completions", STORY).json()
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert body["usage"]["prompt_tokens"] == 4
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["total_tokens"] == 12
    timings = body["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == 4
    assert timings["predicted_n"] == 8
    assert timings["predicted_per_second"] == pytest.approx(7e3 / timings["predicted_ms"])


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", STORY), ("/v1/chat/completions", TALK)])
@pytest.mark.parametrize("include", [True, False, None])
def test_usage_comes_last_and_only_if_asked_for(server, path, body, include):
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    whole = server.post(path, body).json()
    *chunks, done = server.events(path, body | options)
    assert done == "[DONE]"
    if include:
        assert chunks[-1]["choices"] == []
        same = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert all(chunks[-1]["usage"][name] == whole["usage"][name] for name in same)
        chunks.pop()
    assert all(chunk.get("usage") is None and len(chunk["choices"]) == 1 for chunk in chunks)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "more",
    [{}, {"stop": " a"}, {"max_tokens": 1}, {"stop": ["zzz", "qqq"]}, {"max_tokens": 0}, {"temperature": 1, "seed": 7}],
    ids=str,
)
def test_streamed_is_whole_and_every_choice_ends_once(server, n, more):
    body = STORY | more | {"n": n}
    whole = server.post("/v1/completions", body).json()["choices"]
    *chunks, done = server.events("/v1/completions", body)
    assert done == "[DONE]"
    for choice in whole:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        if "stop" in more and choice["finish_reason"] == "stop":
            assert " a" not in choice["text"]


def test_the_role_comes_with_the_first_token(server):
    *chunks, _ = server.events("/v1/chat/completions", TALK)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["content"]
    assert all("role" not in delta for delta in deltas[1:])
    whole = server.post("/v1/chat/completions", TALK).json()["choices"][0]["message"]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["content"]
    assert whole["role"] == "assistant"


def test_an_empty_answer_is_an_answer(server):
    body = TALK | {"stop_token_ids": list(range(1200)), "max_tokens": 5}
    *chunks, done = server.events("/v1/chat/completions", body)
    (only,) = chunks
    assert done == "[DONE]"
    assert only["choices"][0]["finish_reason"] == "stop"
    assert only["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_a_stop_string_ends_the_work_and_what_was_held_back_for_one_is_given_in_the_end(server):
    """The text is the unstopped text up to the stop; the engine makes no token more than that needs."""
    text = server.post("/v1/completions", STORY | {"max_tokens": 12}).json()["choices"][0]["text"]
    words = text.split(" ")
    stop = words[3]
    assert server.quiet()
    before = server.metric("iteration_tokens_total_sum")
    ask = STORY | {"max_tokens": 500, "stop": [stop], "n": 2, "ignore_eos": True}
    body = server.post("/v1/completions", ask).json()
    assert server.quiet()
    assert server.metric("iteration_tokens_total_sum") - before < 40
    for choice in body["choices"]:
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < 2 * 12
    assert body["usage"]["prompt_tokens"] == 4
    almost = STORY | {"max_tokens": 12, "stop": [text[-3:] + "\x00"]}
    assert server.post("/v1/completions", almost).json()["choices"][0]["text"] == text
    *chunks, _ = server.events("/v1/completions", almost)
    assert "".join(c["choices"][0]["text"] for c in chunks) == text


def test_half_a_character_at_the_end_is_shown_as_one(server):
    """Only the first byte of a llama: the decoder holds it back, and has to give it up."""
    half = server.post("/tokenize", {"content": "🦙"}).json()["tokens"][0]
    params = SamplingParams()
    answer = Answer(Job("r", (1,), params, 0.0), Request("r", (1,), params), server.service.tokenizer)
    assert answer.text_of(TokenEvent("r", half, -1.0, (), None, 0.0)) == ""
    assert answer.text_of(TokenEvent("r", None, None, (), "abort", 0.0)) == "\ufffd"


def test_framing(server):
    reply = server.post("/v1/completions", STORY | {"stream": True, "max_tokens": 60, "temperature": 1.5, "seed": 3})
    assert reply.headers["content-type"] == "text/event-stream"
    events_of(reply.content)


@pytest.mark.parametrize("text", ['a\nb\r\n"c" \\ \u2028 🦙 e\u0301', "\x00\x07", "data: [DONE]\n\n"])
def test_hostile_characters_survive_the_stream(server, text):
    ids = server.post("/tokenize", {"content": text}).json()["tokens"]
    *chunks, _ = server.events("/v1/completions", {"prompt": ids, "echo": True, "max_tokens": 0})
    assert "".join(c["choices"][0]["text"] for c in chunks) == text
    assert server.post("/detokenize", {"tokens": ids}).json() == {"content": text}


def test_one_token_one_event_where_utf8_allows(server):
    """The prompt's own tokens, copied by a model that has no choice, would do; here the count of events is bounded."""
    *chunks, _ = server.events("/v1/completions", STORY | {"max_tokens": 20, "logprobs": 0})
    tokens = [token for c in chunks for token in c["choices"][0]["logprobs"]["tokens"]]
    assert len(tokens) == 20
    for chunk in chunks[:-1]:
        held = [t for t in chunk["choices"][0]["logprobs"]["tokens"] if t.startswith("bytes:")]
        assert len(chunk["choices"][0]["logprobs"]["tokens"]) == 1 or held


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_content_in_parts_is_the_joined_text(server):
    by_parts = server.post("/v1/chat/completions", TALK | {"messages": [{"role": "user", "content": PARTS}]}).json()
    joined = server.post("/v1/chat/completions", TALK | {"messages": [{"role": "user", "content": "a\nb"}]}).json()
    assert by_parts["choices"] == joined["choices"]
    assert by_parts["usage"]["prompt_tokens"] == joined["usage"]["prompt_tokens"]


def test_null_content_of_an_assistant_is_tolerated(server):
    messages = [*TALK["messages"], {"role": "assistant", "content": None}, {"role": "user", "content": "go on"}]
    assert server.post("/v1/chat/completions", TALK | {"messages": messages}).status_code == 200


def test_prompt_forms(server):
    ids = server.post("/tokenize", {"content": STORY["prompt"]}).json()["tokens"]
    text = server.post("/v1/completions", STORY).json()["choices"][0]["text"]
    for prompt, count in ((ids, 1), ([STORY["prompt"]] * 2, 2), ([ids, ids, ids], 3)):
        choices = server.post("/v1/completions", STORY | {"prompt": prompt}).json()["choices"]
        assert [c["text"] for c in choices] == [text] * count
        assert [c["index"] for c in choices] == list(range(count))


BAD_COMPLETIONS = [
    {"prompt": ""},
    {"prompt": [""]},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": ["a", [1]]},
    {"prompt": [1, "a"]},
    {"prompt": [1200]},
    {"prompt": [-1]},
    {"prompt": [1.0]},
    {"prompt": [True]},
    {"prompt": {"text": "a"}},
    {"prompt": None},
    {"prompt": ["a"] * 129},
    {"temperature": -1},
    {"temperature": 3},
    {"temperature": True},
    {"temperature": "1"},
    {"top_p": 2},
    {"n": 0},
    {"n": 1.0},
    {"n": True},
    {"max_tokens": "x"},
    {"max_tokens": -1},
    {"max_tokens": 1e400},
    {"max_tokens": 10**30},
    {"best_of": 2},
    {"suffix": "x"},
    {"logit_bias": {"5": 1}},
    {"stop": ""},
    {"stop": [5]},
    {"stop": ["x"] * 17},
    {"logprobs": 21},
    {"logprobs": True},
    {"stream": 1},
    {"stream_options": {"include_usage": 1}},
    {"seed": "x"},
    {"seed": 1.5},
    {"stop_token_ids": [-1]},
]


@pytest.mark.parametrize("wrong", BAD_COMPLETIONS, ids=lambda w: json.dumps(w)[:40])
def test_bad_completions_are_400_in_openais_form(server, wrong):
    check_error(server.post("/v1/completions", STORY | wrong), 400)


BAD_CHATS = [
    {"messages": []},
    {"messages": "hi"},
    {"messages": [5]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "emperor", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
    {"messages": [{"content": "x"}]},
    {"max_tokens": 0},
    {"tools": [{"type": "function"}]},
    {"response_format": {"type": "json_object"}},
    {"top_logprobs": 3},
    {"logprobs": 1},
]


@pytest.mark.parametrize("wrong", BAD_CHATS, ids=lambda w: json.dumps(w)[:40])
def test_bad_chats_are_400_in_openais_form(server, wrong):
    check_error(server.post("/v1/chat/completions", TALK | wrong), 400)


def check_error(reply, status):
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]


def test_unknown_models_and_paths(server):
    for path, body in (("/v1/completions", STORY), ("/v1/chat/completions", TALK)):
        reply = server.post(path, body | {"model": "gpt-9"})
        check_error(reply, 404)
        assert reply.json()["error"]["code"] == "model_not_found"
    names = [model["id"] for model in server.get("/v1/models").json()["data"]]
    assert names == ["tiny"]
    assert server.post("/v1/completions", STORY | {"model": names[0]}).status_code == 200
    assert server.get("/v1/models/tiny").json()["id"] == "tiny"
    check_error(server.get("/v1/models/other"), 404)
    check_error(server.get("/v1/embeddings"), 404)
    check_error(server.get("/v1/completions"), 405)


def test_unknown_fields_are_ignored(server):
    plain = server.post("/v1/completions", STORY).json()["choices"]
    assert server.post("/v1/completions", STORY | {"user": "me", "x": {"y": [1]}}).json()["choices"] == plain


def test_long_prompts_are_refused_with_counts_and_never_cut(server):
    ids = [5] * 1020
    reply = server.post("/v1/completions", {"prompt": ids, "max_tokens": 5})
    check_error(reply, 400)
    error = reply.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "1020" in error["message"]
    assert "1024" in error["message"]
    body = server.post("/v1/completions", {"prompt": ids, "max_tokens": 4}).json()
    assert body["usage"]["prompt_tokens"] == 1020
    check_error(server.post("/v1/completions", {"prompt": "a" * 1_000_000, "max_tokens": 1}), 400)


def test_many_streams_at_once_equal_their_solos(server):
    """Sixteen answers with temperature and seeds of their own, emoji in their prompts, all at the same time."""
    bodies = [
        {"prompt": f"Once {i} 🦙👍", "seed": i, "temperature": 1.3, "max_tokens": 24, "logprobs": 0} for i in range(16)
    ]
    solo = [server.post("/v1/completions", body).json()["choices"][0] for body in bodies]
    with ThreadPoolExecutor(16) as pool:
        streams = list(pool.map(lambda body: server.events("/v1/completions", body), bodies))
    for alone, (*chunks, _) in zip(solo, streams, strict=True):
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone["text"]
        tokens = [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]]
        assert tokens == alone["logprobs"]["tokens"]
