"""The real clients against a running server: openai and ollama (Python), openai on Node, curl."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

openai = pytest.importorskip("openai")
ollama = pytest.importorskip("ollama")

TALK = [{"role": "user", "content": "Hello, who are you?"}]
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def gpt(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def llama(server):
    return ollama.Client(host=server.url)


def test_openai_python(gpt):
    assert [model.id for model in gpt.models.list()] == ["tiny"]
    whole = gpt.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=2)
    assert whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].logprobs.tokens) == 6
    stream = gpt.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_openai_python_chats(gpt):
    ask = {"model": "tiny", "messages": TALK, "temperature": 0, "max_tokens": 6}
    whole = gpt.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    answer = whole.choices[0]
    assert answer.message.role == "assistant"
    assert len(answer.logprobs.content) == 6
    assert len(answer.logprobs.content[0].top_logprobs) == 2
    chunks = list(gpt.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer.message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 6


def test_openai_python_errors(gpt):
    with pytest.raises(openai.NotFoundError) as missing:
        gpt.completions.create(model="nobody", prompt=PROMPT)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError):
        gpt.completions.create(model="tiny", prompt="")


def test_ollama_python(llama):
    assert [model.model for model in llama.list().models] == ["tiny"]
    options = {"temperature": 0, "num_predict": 6}
    whole = llama.generate("tiny", "Hello", options=options)
    assert whole.done
    assert whole.done_reason == "length"
    assert whole.eval_count == 6
    assert whole.eval_duration > 0
    assert whole.prompt_eval_count > 6
    assert whole.total_duration >= whole.eval_duration
    parts = list(llama.generate("tiny", "Hello", options=options, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    assert parts[-1].done
    assert not any(part.done for part in parts[:-1])


def test_ollama_python_chats(llama):
    options = {"temperature": 0, "num_predict": 6}
    whole = llama.chat("tiny", TALK, options=options)
    parts = list(llama.chat("tiny", TALK, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.message.content
    assert llama.show("tiny").modelinfo["llama.context_length"] == 1024
    assert llama.ps().models[0].model == "tiny"


def test_ollama_python_errors(llama):
    with pytest.raises(ollama.ResponseError) as missing:
        llama.generate("nobody", "x")
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as wrong:
        llama.generate("tiny", "x", options={"top_p": 2})
    assert wrong.value.status_code == 400


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server):
    body = json.dumps({"prompt": PROMPT, "temperature": 0, "max_tokens": 3, "stream": True})
    command = ["curl", "-sSN", "-i", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    head, _, events = out.partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "text/event-stream" in head
    assert events.endswith("data: [DONE]\n\n")


NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none" });
const ask = { model: "tiny", messages: [{ role: "user", content: "Hello" }], temperature: 0, max_tokens: 6 };
const whole = await client.chat.completions.create(ask);
let text = "", usage = null;
const options = { ...ask, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(options)) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
let code = null;
try { await client.completions.create({ model: "nobody", prompt: "x" }); } catch (error) { code = error.code; }
console.log(JSON.stringify({ same: text === whole.choices[0].message.content, tokens: usage.completion_tokens, code }));
"""


def test_openai_on_node(server, tmp_path):
    """Needs `npm install openai` in a folder that MINIFER_NODE_MODULES names."""
    modules = os.environ.get("MINIFER_NODE_MODULES")
    if shutil.which("node") is None or not modules or not (Path(modules) / "openai").is_dir():
        pytest.skip("needs node, and MINIFER_NODE_MODULES with the npm package openai")
    (tmp_path / "node_modules").symlink_to(Path(modules).resolve())
    (tmp_path / "ask.mjs").write_text(NODE)
    command = ["node", "ask.mjs", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"same": True, "tokens": 6, "code": "model_not_found"}
