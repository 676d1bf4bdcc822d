"""`minifer chat`: a conversation that survives refusals and Ctrl-C. The model is a stand-in that counts."""

import os
import signal
import sys

import pytest

from minifer.apps import chat_cli
from minifer.apps.chat_cli import Conversation, talk
from minifer.errors import RequestError
from minifer.llm import Chunk, CompletionOutput, RequestOutput
from minifer.metrics import RequestMetrics
from minifer.sampling import SamplingParams

PARAMS = SamplingParams(max_tokens=8)


class StandIn:
    """Answers every conversation with `words`, one per token, and remembers what it was sent."""

    def __init__(self, words=("one", " two", " three")):
        """`words` is the whole answer."""
        self.words, self.sent, self.closed = words, [], 0

    def encode_chat(self, messages):
        """The conversation itself takes the place of its ids."""
        return [dict(message) for message in messages]

    def stream(self, prompt, params):
        """As LLM.stream: chunks, with metrics in the last one."""
        assert params is PARAMS
        self.sent.append(prompt)
        part = CompletionOutput(0)
        output = RequestOutput("r1", None, (), [part])
        try:
            for number, word in enumerate(self.words, 1):
                part.text += word
                part.token_ids.append(number)
                done = number == len(self.words)
                if done:
                    part.finish_reason = "stop"
                    part.metrics = RequestMetrics(
                        ttft=0.25, itl=(0.1, 0.3), prompt_tokens=10, cached_tokens=4, output_tokens=3
                    )
                yield Chunk(0, word, number, part.finish_reason, output)
        finally:
            self.closed += 1


def lines(*texts):
    """A user who says these things and leaves."""
    said = iter(texts)
    return lambda: next(said, None)


def never():
    """Nobody pressed Ctrl-C."""
    return False


def test_each_turn_sends_everything_before(capsys):
    """System message, first turn, its answer, second turn."""
    llm = StandIn()
    talk(Conversation(llm, PARAMS, "Be brief."), lines("hello", "and then?"))
    assert [m["role"] for m in llm.sent[1]] == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in llm.sent[1]] == ["Be brief.", "hello", "one two three", "and then?"]
    out, err = capsys.readouterr()
    assert out == "one two three\n" * 2
    assert err == "[10 tokens in, 4 of them from the cache, 3 out, TTFT 250 ms, ITL 200 ms]\n" * 2


def test_reset_forgets_all_but_the_system_message():
    """After /reset the next turn is the first again."""
    llm = StandIn()
    talk(Conversation(llm, PARAMS, "Be brief."), lines("hello", "/reset", "again"))
    assert [m["content"] for m in llm.sent[1]] == ["Be brief.", "again"]


def test_commands_are_not_said(capsys):
    """/stats adds up, an unknown command shows the help, empty lines are nothing, /exit leaves."""
    llm = StandIn()
    talk(Conversation(llm, PARAMS), lines("/stats", "hi", "", "hi", "/stats", "/what", "/exit", "never said"))
    assert len(llm.sent) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "nothing was said yet"
    assert out[3] == "turns: 2, 6 tokens were generated, 8 of 20 prompt tokens came from the cache (40%)"
    assert out[4] == chat_cli.HELP


def test_a_stopped_answer_is_kept_as_far_as_it_came():
    """The stream is closed, which ends the request, and the half answer is part of the conversation."""
    llm = StandIn()
    conversation = Conversation(llm, PARAMS)
    pressed = iter([False, True])
    assert len(list(conversation.ask("hello", lambda: next(pressed)))) == 2
    assert llm.closed == 1
    assert conversation.messages[-1] == {"role": "assistant", "content": "one two"}
    assert chat_cli.cost_of(conversation.turns[-1]) == "stopped after 2 tokens"
    assert conversation.stats() == "turns: 1, 2 tokens were generated"


def test_a_refused_turn_leaves_the_conversation_as_it_was(capsys):
    """Too long for the context: one line, and the user can go on."""

    class Full(StandIn):
        def stream(self, prompt, params):
            if len(prompt) > 2:
                raise RequestError("too long")
            return super().stream(prompt, params)

    conversation = Conversation(Full(), PARAMS)
    talk(conversation, lines("hello", "more"))
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"]
    assert "minifer: too long (/reset starts again)" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no kill(SIGINT) of oneself")
def test_ctrl_c_is_noted_once_and_then_obeyed():
    """The first is a wish, the second an order, and afterwards the old handler is back."""
    before = signal.getsignal(signal.SIGINT)
    with chat_cli.ctrl_c_noted() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_more_than_one_answer_makes_no_conversation():
    """n = 2 is refused before anything is loaded."""
    from minifer.apps import cli

    assert cli.main(["chat", "no-such-model", "--n", "2"]) == 2
