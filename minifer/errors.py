"""Every error that minifer raises on purpose.

An error is written for the person who reads it: *what* was wrong, *which value* it was, and *what to do* about it.
The command line prints `str(error)` on one line and exits with a non-zero code; the server turns it into an HTTP error.
A `MiniferError` therefore never carries a traceback for its meaning, and any other exception is a bug in minifer.
"""


class MiniferError(Exception):
    """Base of all expected failures: catching it catches whatever a user, a file or a machine did wrong."""


class UsageError(MiniferError, ValueError):
    """A value that a caller gave is not allowed (a negative temperature, an unknown flag value)."""


class RequestError(UsageError):
    """One request cannot be served as asked: the prompt is empty, too long for the context, out of vocabulary."""


class CapacityError(RequestError):
    """A request can never fit this engine: it needs more KV blocks than the whole pool holds."""


class ModelNotFoundError(MiniferError, LookupError):
    """No model of that name is known, and no file or folder stands at that path."""


class DownloadError(MiniferError):
    """A model could not be fetched: no network, an attempt that broke off, a checksum that does not match."""


class FormatError(MiniferError, ValueError):
    """A file is truncated, damaged or hostile: what was read, at which offset, and what was expected there."""


class UnsupportedError(MiniferError):
    """A file is whole, but asks for what minifer does not have (named: architecture, RoPE scaling, tensor type)."""


class TokenizerError(MiniferError, ValueError):
    """A vocabulary or a text that the tokenizer cannot handle exactly; it never guesses."""


class NumericsError(MiniferError, ArithmeticError):
    """NaN or infinity where a number must be: logits of a damaged or overflowing model."""


class DeviceError(MiniferError, RuntimeError):
    """The device asked for is not there or cannot do it: no driver, no CuPy, too little memory."""


class InvariantError(MiniferError, AssertionError):
    """The bookkeeping contradicts itself (a block freed twice). Always a bug: please report it."""
