"""What servers are asked, in each API's words, and the small HTTP client underneath."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import PLAIN, ScriptedServer, answer, chunk, in_virtual_time

from minifer.apps.loadgen.client import Server
from minifer.apps.loadgen.point import Plan
from minifer.apps.loadgen.protocols import APIS, Ask, Lines, Sse
from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.wire import Address, Answer, WireError
from minifer.apps.workloads import Arrival
from minifer.errors import UsageError

OLLAMA = json.loads((Path(__file__).parent / "data" / "ollama_generate.json").read_text("utf-8"))
ARRIVAL = Arrival(0, 0.0, tuple(range(12)), 8, "twelve words")


def ask(script, backend, question, arrival=ARRIVAL, headers=None, endpoint=None):
    """One request in virtual time: its record and the server."""

    async def main():
        async with ScriptedServer(script) as server:
            record, now = Record(0, 0.0, 12, 8), asyncio.get_running_loop().time
            target = Server(Address.parse(server.url), APIS[backend], headers or {}, endpoint)
            await target.send(arrival, question, record, now)
            return record, server

    return in_virtual_time(main)


def test_openai_completions_are_asked_in_vllms_words():
    """Text where it is known, ids where asked for or where nothing else is known; the usage is always asked for."""
    question = Ask("m", ignore_eos=True, temperature=0.0, sampling={"top_k": 3}, extra={"user": "me"})
    script = lambda *_: answer([(0.1, "x")])  # noqa: E731
    _, server = ask(script, "openai", question, headers={"Authorization": "Bearer key"})
    assert server.bodies[0] == {
        "model": "m", "prompt": "twelve words", "max_tokens": 8, "stream": True, "temperature": 0.0, "ignore_eos": True,
        "stream_options": {"include_usage": True}, "top_k": 3,
        "user": "me",
    }  # fmt: skip
    assert server.paths == ["/v1/completions"]
    assert "Authorization: Bearer key\r\n" in server.heads[0]
    ids = [ask(script, "openai", q, a)[1].bodies[0]["prompt"]
           for q, a in ((Ask("m", as_ids=True), ARRIVAL), (Ask("m"), Arrival(0, 0.0, (4, 5), 8)))]  # fmt: skip
    assert ids == [list(range(12)), [4, 5]]
    assert ask(script, "openai", Ask("m"), endpoint="/elsewhere")[1].paths == ["/elsewhere"]


def test_chat_sends_one_message_of_a_user():
    _, server = ask(lambda *_: answer([(0.1, "x")]), "openai-chat", Ask("m"))
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "twelve words"}]
    assert "prompt" not in server.bodies[0]
    assert server.paths == ["/v1/chat/completions"]
    with pytest.raises(UsageError, match="--tokenizer"):
        APIS["openai-chat"].payload(Arrival(0, 0.0, (4, 5), 8), Ask("m"))


def ollama_script(*_):
    """The recorded exchange at its recorded times."""
    steps = [(0.0, OLLAMA["head"].encode())]
    steps += [(at / 1e3, chunk(text.encode())) for at, text in OLLAMA["chunks"]]
    return [*steps, (OLLAMA["chunks"][-1][0] / 1e3, chunk(b""))]


def test_ollama_by_a_recorded_exchange():
    """The last object has text and the counts: it is a token like the others."""
    record, server = ask(ollama_script, "ollama", Ask("smollm2:135m", ignore_eos=True))
    assert server.bodies[0] == OLLAMA["request"] | {"prompt": "twelve words"}
    assert server.paths == ["/api/generate"]
    assert (record.text, record.tokens, record.prompt_tokens) == (" The sky is blue because of Rayleigh", 8, 12)
    assert (record.finish_reason, record.error) == ("length", None)
    metrics = record.metrics()
    assert metrics.ttft == pytest.approx(0.078)
    assert metrics.itl == pytest.approx([0.012] * 7)
    assert metrics.tpot == pytest.approx(0.012)
    assert APIS["ollama"].models(OLLAMA["tags"]) == ["smollm2:135m"]


def test_lines_of_json_may_be_cut_anywhere():
    """Up to the end of the connection, without a last line end, several objects in one read, errors inside."""
    objects = [{"response": "é", "done": False}, {"response": "🙂", "done": True, "eval_count": 2}]
    body = "\n".join(json.dumps(o, ensure_ascii=False) for o in objects).encode()
    record, _ = ask(
        lambda *_: [(0.0, PLAIN), *((0.001 * i, bytes([b])) for i, b in enumerate(body))], "ollama", Ask("m")
    )
    assert (record.text, record.tokens, record.error) == ("é🙂", 2, None)
    record, _ = ask(
        lambda *_: [(0.0, PLAIN + b'{"response":"a","done":false}\n{"error":"no memory"}\n')], "ollama", Ask("m")
    )
    assert record.error == "no memory"
    record, _ = ask(lambda *_: [(0.0, PLAIN + b'{"response":"a","done":false}\n')], "ollama", Ask("m"))
    assert "without saying that it was complete" in record.error


def test_reasoning_is_text_and_timings_may_tell_what_was_cached():
    chat, plain = APIS["openai-chat"], APIS["openai"]
    assert chat.event('{"choices": [{"delta": {"reasoning_content": "hm"}}]}').text == "hm"
    assert chat.event('{"choices": [{"delta": {"content": null}}]}').text == ""
    assert plain.event('{"choices": [{"text": null}], "timings": {"cache_n": 9}}').cached_tokens == 9
    assert plain.event("[DONE]").last
    assert plain.event('{"error": "why"}').error == plain.event('{"error": {"message": "why"}}').error == "why"


@given(st.data())
def test_an_answer_is_the_same_however_it_is_cut(data):
    """HTTP, lines and events together are a function of the bytes alone."""
    body = "data: a\r\n\r\n:c\n\ndata: b\ndata: ü\n\nid: 7\n\ndata:d".encode()
    whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    at = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=6)))
    for start, end in zip([0, *at], [*at, len(body)], strict=True):
        whole += chunk(body[start:end])
    whole += b"0\r\nTrailer: x\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=9)))
    lines, events, found = Lines(), Sse(), []
    reader = Answer(lambda piece: found.extend(events.take(line) for line in lines.feed(piece)))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        reader.feed(whole[start:end])
    found += [events.take(line) for line in lines.rest()] + [events.rest()]
    assert [message for message in found if message is not None] == ["a", "b\nü", "d"]
    assert reader.complete


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "without an answer"), (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "in the middle"),
     (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunk's length"),
     (b"HTTP/1.1 abc\r\n\r\n", "no HTTP"), (b"x" * 70_000, "no HTTP")],
)  # fmt: skip
def test_what_is_not_http(data, why):
    def read():
        reader = Answer(lambda _: None)
        reader.feed(data)
        reader.end()

    with pytest.raises(WireError, match=why):
        read()


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://h:port", "http://h:99999"])
def test_what_is_no_url(url):
    with pytest.raises(UsageError):
        Address.parse(url)


def test_points_and_warm_ups_share_no_prompts():
    """Or one would find the other's in the prefix cache; the first point depends on the seed alone."""
    options = {"num_prompts": 6, "vocab_size": 500, "random_input_len": 9}
    plan = Plan((2.0, 4.0), seed=3, num_warmups=2, options=options)
    prompts = [a.prompt_ids for point in (0, 1) for a in [*plan.arrivals(point), *plan.warmups(point)]]
    assert len(prompts) == len(set(prompts)) == 16
    assert plan.arrivals(0) == Plan((2.0,), seed=3, options=options).arrivals(0)
    repeating = Plan(
        (2.0,), num_warmups=1, options={"dataset_name": "prefix_repetition", "num_prompts": 20, "vocab_size": 9}
    )
    assert len(repeating.warmups(0)) == 1
