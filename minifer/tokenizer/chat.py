"""Conversations: from a list of messages to the ids a chat model was trained on.

A chat model knows turns by control tokens: `<|im_start|>user\\nHi<|im_end|>\\n`. How exactly is written in the model's
*chat template*, a small Jinja program that comes with the vocabulary. It is run in Jinja's sandbox, since it is a
stranger's code.

**The trap.** Rendering gives one string, and in that string a `<|im_end|>` that the template wrote looks exactly like
one that a user typed. Encode it with control tokens allowed, and every user can close their own turn and open one of
the system. Encode it without, and the template's own turns fall apart.

**The way out: mark the template, not the contents.** Before rendering, every control token in the *source of the
template* is replaced by one character of its own from Unicode's private area, chosen so that it occurs nowhere in the
messages. After rendering, these characters, and nothing else, become control tokens. So

* contents need no escaping: the template sees the real strings, and may trim, split, compare or measure them as it
  likes;
* nothing a user writes can become a control token, because the characters that do were chosen after reading all they
  wrote;
* mistakes fall to the safe side: text that got lost between the two worlds is plain text.

**Its limit.** A template that builds control tokens out of parts (`'<|' + role + '|>'`) cannot be marked. That is
noticed (a control token stands in the output that no message contains) and refused. And a template that *looks for* a
control token in a content does not find it: by the rule above there is none. The sandbox keeps a template away from
Python and from the machine, but it does not limit its time: a model's files are to be trusted that far.

Not here: what is done with the answer (`llm`), and tools, which templates receive as the variable `tools`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import regex

from minifer.errors import TokenizerError
from minifer.tokenizer.pretokenize import fix_surrogates

if TYPE_CHECKING:
    from jinja2 import Template

    from minifer.formats.vocab_files import AddedToken, VocabFile

PRIVATE_AREA = range(0xE000, 0xF900)  # Unicode gives these 6,400 characters no meaning, now or ever


class Markers:
    """One character for each control token of one vocabulary, foreign to one conversation.

    `tokens` are the control tokens with their markers as content.
    """

    def __init__(self, file: VocabFile, untrusted: Any) -> None:
        if file.chat_template is None:
            raise TokenizerError("this vocabulary has no chat template; write the prompt as text, or use a chat model")
        self.template = file.chat_template
        self.strings = list(strings_in(untrusted))
        self.specials = {token.content: token for token in file.added if token.special}
        taken = set(self.template).union(*self.strings)
        free = [chr(code) for code in PRIVATE_AREA if chr(code) not in taken]
        if len(free) < len(self.specials):
            raise TokenizerError("the messages use up Unicode's private area; no character is left to mark turns with")
        self.marker_of = dict(zip(self.specials, free, strict=False))
        self.tokens: list[AddedToken] = [
            replace(token, content=self.marker_of[content], normalized=False)
            for content, token in self.specials.items()
        ]
        by_id = {token.id: token.content for token in self.tokens}
        self.named = {"bos_token": by_id.get(-1 if file.bos_id is None else file.bos_id, "")}
        self.named["eos_token"] = by_id.get(file.eos_ids[0], "") if file.eos_ids else ""

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str:
        """The template's text, with markers where it wrote control tokens."""
        if not messages:
            raise TokenizerError("a conversation needs at least one message")
        given = {"messages": list(messages), **variables, "add_generation_prompt": add_generation_prompt}
        template = compile_template(self._mark(self.template))
        try:
            text = template.render(**self.named, **cleaned(given))
        except TokenizerError:
            raise
        except Exception as error:  # a template is a program, and can fail in any way
            raise TokenizerError(f"the chat template failed on these messages: {error}") from None
        self._refuse_assembled(text)
        return text

    def _mark(self, source: str) -> str:
        longest_first = sorted(self.marker_of, key=len, reverse=True)
        if not longest_first:
            return source
        pattern = regex.compile("|".join(map(regex.escape, longest_first)))
        return str(pattern.sub(lambda match: self.marker_of[match.group()], source))

    def _refuse_assembled(self, text: str) -> None:
        for content in self.specials:
            if content in text and not any(content in string for string in self.strings):
                raise TokenizerError(
                    f"the chat template builds the control token {content!r} out of parts, "
                    "so it cannot be told from what users write; minifer refuses such a template"
                )


def strings_in(value: Any) -> Iterator[str]:
    """Every string inside nested lists and dictionaries, keys included.

    >>> list(strings_in([{"role": "user", "content": [{"text": "hi"}]}]))
    ['role', 'user', 'content', 'text', 'hi']
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from strings_in(key)
            yield from strings_in(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from strings_in(part)
    elif not isinstance(value, (int, float, type(None))):
        raise TokenizerError(f"messages are made of text, numbers, lists and dictionaries, not {type(value).__name__}")


def cleaned(value: Any) -> Any:
    """A deep copy in plain dictionaries and lists, surrogates mended: the template sees just what was checked."""
    if isinstance(value, str):
        return fix_surrogates(value)
    if isinstance(value, Mapping):
        return {cleaned(key): cleaned(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [cleaned(part) for part in value]
    return value


@lru_cache(maxsize=8)
def compile_template(source: str) -> Template:
    """The template, compiled as `transformers` does (utils/chat_template_utils.py): sandboxed, with its block rules."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TokenizerError(f"the chat template refuses these messages: {message}")

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise TokenizerError(f"the chat template is not valid Jinja: {error}") from None
