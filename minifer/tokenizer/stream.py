"""Text from tokens that are still arriving.

A token is bytes, and a character may be spread over several tokens: `👍` is three of SmolLM2's. Whoever decodes each
token on its own turns it into `���`, also in replies that are not streamed, and every test that decodes whole sequences
stays green. The cure is a decoder with a memory: it hands out every character as soon as its last byte is there, and
holds back the bytes of the one that is not finished.

    tokens   10813    235   231   10813   116   243
    text        ""     ""  "👍"      ""    ""  "🦙"

UTF-8 was made so that this needs no looking ahead: a first byte says how many follow. Bytes that cannot become a
character any more are given out as U+FFFD, exactly those that decoding the whole would show, so

    "".join(every push) + finish() == tokenizer.decode(ids, skip_special)

Not here: stop strings, which need a memory of their own (`sampling`).
"""

from __future__ import annotations

import codecs

from minifer.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes the tokens of *one* sequence, one at a time.

    >>> decoder = StreamDecoder(Tokenizer.from_merges({}))
    >>> [decoder.push(byte) for byte in "aé".encode()], decoder.finish()
    (['a', '', 'é'], '')
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.vocabulary.strip_first  # one leading blank is not text, but SentencePiece's habit

    def push(self, token_id: int) -> str:
        """The text that this token completes; often "" or several characters. Raises for an id without a token.

        A special token that is skipped leaves a half-finished character as it is: its other half may still come. One
        that is shown is text like any other, and a half before it comes out as U+FFFD. Of the leading blanks exactly
        one is dropped where `_at_start` says so, also if the first token holds several.

        >>> decoder = StreamDecoder(Tokenizer.from_merges({}))
        >>> decoder.push(0xC3), decoder.push(0xA9)
        ('', 'é')
        """
        data = self.tokenizer.token_bytes(token_id)
        if self.skip_special and self.tokenizer.is_special(token_id):
            return ""
        if self._at_start and data:
            data, self._at_start = data.removeprefix(b" "), False
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What is still held back, as U+FFFD: the bytes of a character whose end never came."""
        return self._utf8.decode(b"", final=True)
