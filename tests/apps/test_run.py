"""`minifer run` on the bundled model: stdin, streaming, JSON, and mistakes that cost nothing."""

import io
import json
import sys

import pytest

from minifer.apps import cli

PROMPT = "Once upon a time"


def run(capsys, *words):
    """Exit status, stdout and stderr of `minifer run tiny WORDS`."""
    status = cli.main(["run", "tiny", *words, "--max-tokens", "12"])
    return status, *capsys.readouterr()


def test_streamed_text_is_the_whole_text(capsys):
    """What appears piece by piece is what --json prints at once, and greedy runs agree."""
    status, streamed, err = run(capsys, PROMPT)
    assert (status, err) == (0, "")
    whole = json.loads(run(capsys, PROMPT, "--json")[1])
    assert streamed.removesuffix("\n") == whole["text"].removesuffix("\n")
    assert len(whole["token_ids"]) == whole["metrics"]["output_tokens"] <= 12
    assert whole["finish_reason"] in ("stop", "length")
    assert whole["metrics"]["ttft"] > 0


def test_stdin_is_the_prompt(capsys, monkeypatch):
    """With no prompt, or `-`, the text is read from stdin, but for the line end that `echo` adds."""
    for words in ((), ("-",)):
        for typed, prompt in ((PROMPT, PROMPT), (PROMPT + "\n", PROMPT), (PROMPT + "\n\n", PROMPT + "\n")):
            monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
            assert json.loads(run(capsys, *words, "--json")[1])["prompt"] == prompt


def test_empty_stdin_is_a_mistake(capsys, monkeypatch):
    """Nothing came through the pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(capsys) == (2, "", "minifer: there is no prompt: stdin was empty\n")


def test_chat_wraps_the_prompt(capsys):
    """The template adds tokens around the same text."""
    plain = json.loads(run(capsys, PROMPT, "--json")[1])["prompt_token_ids"]
    chat = json.loads(run(capsys, PROMPT, "--json", "--chat")[1])["prompt_token_ids"]
    assert len(chat) > len(plain)


def test_several_answers(capsys):
    """n answers, numbered; the same seed draws the same ones."""
    words = (PROMPT, "--n", "3", "--temperature", "1", "--seed", "7")
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert [line[:10] for line in out.splitlines() if line.startswith("---")] == [f"--- {i} of 3" for i in (1, 2, 3)]
    assert run(capsys, *words)[1] == out


def test_every_sampling_option_arrives(capsys, monkeypatch):
    """Each option of the command line sets the field of its name."""
    from minifer.apps import options

    seen = []
    monkeypatch.setattr(options, "open_model", lambda args: seen.append(options.sampling_params(args)) or 1 / 0)
    given = {
        "n": 2, "temperature": 0.5, "top_k": 5, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5,
        "presence_penalty": 0.75, "frequency_penalty": -0.5, "seed": 11, "logprobs": 3,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    run(
        capsys,
        PROMPT,
        *words,
        "--stop",
        "a",
        "--stop",
        "b",
        "--stop-token-ids",
        "3",
        "--stop-token-ids",
        "4",
        "--ignore-eos",
    )
    expected = given | {"max_tokens": 12, "stop": ("a", "b"), "stop_token_ids": (3, 4), "ignore_eos": True}
    assert {name: getattr(seen[0], name) for name in expected} == expected


def test_a_stop_text_ends_the_answer(capsys):
    """The answer ends before the text that was to end it."""
    text = json.loads(run(capsys, PROMPT, "--json")[1])["text"]
    word = text.split()[2]
    stopped = json.loads(run(capsys, PROMPT, "--json", "--stop", word)[1])
    assert stopped["text"] == text[: text.index(word)]
    assert stopped["finish_reason"] == "stop"


def test_logprobs_are_reported(capsys):
    """One entry per token, each with its k likeliest; the greedy token leads them."""
    answer = json.loads(run(capsys, PROMPT, "--json", "--logprobs", "2")[1])["outputs"][0]
    assert len(answer["logprobs"]) == len(answer["token_ids"])
    assert all(entry["top"][0][0] == entry["token_id"] for entry in answer["logprobs"])
    assert {len(entry["top"]) for entry in answer["logprobs"]} == {2}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--temperature", "-1"), "temperature"),
        (("--top-p", "1.5"), "top_p"),
        (("--temperature", "nan"), "temperature"),
        (("--device", "abacus"), "abacus"),
        (("--block-size", "0"), "block_size"),
        (("--max-model-len", "2"), ""),
    ],
)
def test_values_out_of_range_are_one_line(capsys, words, complaint):
    """Exit status 2, one line that names the value, no answer."""
    status, out, err = run(capsys, PROMPT, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert complaint in err


def test_an_unknown_model_is_one_line(capsys, tmp_path, monkeypatch):
    """A name that is nothing, and a folder that is not a model."""
    monkeypatch.chdir(tmp_path)
    for model in ("smolm2-135m", str(tmp_path)):
        assert cli.main(["run", model, "x"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("minifer: ")
        assert err.count("\n") == 1


def test_a_prompt_longer_than_the_context(capsys):
    """Refused by name, with both lengths."""
    status, out, err = run(capsys, "story " * 2000)
    assert (status, out) == (2, "")
    assert "1024" in err or "1,024" in err


def test_a_model_without_vocabulary_wants_ids(capsys):
    """`random:` models have no words."""
    assert cli.main(["run", "random:tiny", "hello"]) == 2
    assert "no vocabulary" in capsys.readouterr().err
