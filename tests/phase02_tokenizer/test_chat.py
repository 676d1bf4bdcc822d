"""Chat templates: control tokens come from the template, everything else is what people wrote."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer.errors import TokenizerError
from minifer.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
START, END, EOS = 257, 258, 256


def chat(template, **changes):
    """A byte-level tokenizer with this template."""
    plain = Tokenizer.from_merges({}, special_tokens=["</s>", "<|im_start|>", "<|im_end|>", "[INST]"])
    return Tokenizer(replace(plain.vocabulary.file, chat_template=template, **changes))


def say(content, role="user"):
    """A conversation of one message."""
    return [{"role": role, "content": content}]


def text(tokenizer, ids):
    """Ids as text, in which control tokens are written ⟨name⟩."""
    names = {index: f"⟨{name}⟩" for name, index in tokenizer.special_tokens.items()}
    return "".join(names.get(index) or chr(index) for index in ids)


def test_layout():
    """The template's words and the messages, in order."""
    tokenizer = chat(CHATML)
    expected = "⟨<|im_start|>⟩user\nHi⟨<|im_end|>⟩\n"
    assert text(tokenizer, tokenizer.apply_chat_template(say("Hi"), False)) == expected
    assert text(tokenizer, tokenizer.apply_chat_template(say("Hi"))) == expected + "⟨<|im_start|>⟩assistant\n"


@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "</s>", "im_end|>", "<|", "\ue000", "\ue001", "\n", "x"]))
)
def test_no_content_can_become_a_control_token(parts):
    """Whole names, halves of names, and the very characters that would be taken as markers otherwise."""
    tokenizer = chat(CHATML)
    content = "".join(parts)
    ids = tokenizer.apply_chat_template(say(content))
    assert [index for index in ids if index >= 256] == [START, END, START]
    assert content.encode() in tokenizer.decode_bytes(ids)


def test_roles_and_other_fields_are_plain_text_too():
    """A role is also something that came from outside."""
    ids = chat(CHATML).apply_chat_template(say("x", role="user<|im_end|>"))
    assert [index for index in ids if index >= 256] == [START, END, START]


def test_surrogates_cannot_hide_a_marker():
    """Two halves that become a private character when mended are mended first, and the template sees the result."""
    tokenizer = chat(CHATML)
    ids = tokenizer.apply_chat_template(say("\udb80\udc00 \ud83d"))
    assert [index for index in ids if index >= 256] == [START, END, START]
    assert "\U000f0000 \ufffd" in tokenizer.decode(ids)
    measuring = chat("{{ messages[0].content | length }}")
    assert measuring.decode(measuring.apply_chat_template(say("\ud83d\udc4d\ud83d"))) == "2"


def test_the_template_sees_the_real_strings():
    """Trimming, measuring, splitting and comparing work on what was written."""
    template = (
        "{% for m in messages %}[INST]{{ m.content | trim }}|{{ m.content | length }}"
        "|{{ m.content.split('</think>')[-1] }}"
        "|{{ 'yes' if '<b>' in m.content else 'no' }}{{ eos_token }}{% endfor %}"
    )
    tokenizer = chat(template)
    ids = tokenizer.apply_chat_template(say("  a</think><b>[INST] "), False)
    assert text(tokenizer, ids) == "⟨[INST]⟩a</think><b>[INST]|21|<b>[INST] |yes⟨</s>⟩"


def test_bos_and_eos_are_control_tokens_or_nothing():
    """A template may write them by name; without one the name is empty."""
    template = "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}"
    assert chat(template, bos_id=START).apply_chat_template(say("a")) == [START, 97, EOS]
    assert chat(template, eos_ids=()).apply_chat_template(say("a")) == [97]


def test_tools_arrive_as_json_and_as_plain_text():
    """`tojson` keeps letters as they are, as transformers does, and escapes no `<`."""
    template = "{{ tools | tojson }}"
    tokenizer = chat(template)
    ids = tokenizer.apply_chat_template(say("a"), tools=[{"name": "é<|im_end|>"}])
    assert tokenizer.decode(ids) == '[{"name": "é<|im_end|>"}]'
    assert max(ids) < 256


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (None, say("a"), "no chat template"),
        (CHATML, [], "at least one message"),
        ("{% if %}", say("a"), "not valid Jinja"),
        ("{{ raise_exception('roles must alternate') }}", say("a"), "roles must alternate"),
        (CHATML, [{"role": "user", "content": None}], "failed on these messages"),
        (CHATML, [{"role": "user"}], "failed on these messages"),
        (CHATML, [{"role": "user", "content": object()}], "not object"),
        ("{{ '<|' + messages[0].role + '|>' }}", say("a", role="im_end"), "out of parts"),
        ("{{ ''.__class__.__mro__ }}", say("a"), "failed on these messages"),
        ("{{ messages.append(1) }}", say("a"), "failed on these messages"),
        ("{% for i in range(10**9) %}{% endfor %}", say("a"), "failed on these messages"),
    ],
)
def test_bad_templates_and_messages(template, messages, message):
    """Whatever goes wrong in a stranger's program is one typed error."""
    with pytest.raises(TokenizerError, match=message):
        chat(template).apply_chat_template(messages)


def test_a_message_that_uses_up_the_private_area():
    """No marker is left, so nothing is guessed."""
    with pytest.raises(TokenizerError, match="private area"):
        chat(CHATML).apply_chat_template(say("".join(map(chr, range(0xE000, 0xF900)))))


def test_bundled_model(tiny):
    """The tiny model's own template."""
    ids = tiny.apply_chat_template(say("hi<|im_end|>"))
    marks = [index for index in ids if tiny.is_special(index)]
    assert marks == [tiny.special_tokens[name] for name in ("<|im_start|>", "<|im_end|>", "<|im_start|>")]
    assert tiny.decode(ids) == "<|im_start|>user\nhi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
