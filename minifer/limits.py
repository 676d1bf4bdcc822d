"""The limits of an engine, one frozen value, checked against each other once, before anything runs.

A contradiction between two limits does not fail loudly by itself: it shows as a request that waits for ever. So every
combination that could hang is refused here, with both numbers. Names are vLLM's; `num_blocks` is its
`num_gpu_blocks_override`.
"""

from dataclasses import dataclass

from minifer.errors import CapacityError, RequestError, UsageError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much fits: blocks, seats, tokens per step, tokens per request.

    `max_model_len` None means as long as the pool allows. Raises UsageError for values that are no positive whole
    numbers, or that contradict each other.

    >>> EngineConfig(num_blocks=64, max_num_seqs=32, max_num_batched_tokens=16)
    Traceback (most recent call last):
    minifer.errors.UsageError: max_num_seqs=32 answers cannot each have a token in steps of
    max_num_batched_tokens=16: raise one or lower the other
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is None and name == "max_model_len":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise UsageError(
                f"max_num_seqs={self.max_num_seqs} answers cannot each have a token in steps of "
                f"max_num_batched_tokens={self.max_num_batched_tokens}: raise one or lower the other"
            )
        if self.max_model_len is not None and self.max_model_len > self.capacity:
            raise UsageError(
                f"max_model_len={self.max_model_len} tokens do not fit num_blocks={self.num_blocks} blocks of "
                f"block_size={self.block_size}, which hold {self.capacity}: raise num_blocks or lower max_model_len"
            )
        longest = self.max_model_len or self.capacity
        if not self.enable_chunked_prefill and longest > self.max_num_batched_tokens:
            raise UsageError(
                f"without chunked prefill a prompt runs in one step, but max_num_batched_tokens="
                f"{self.max_num_batched_tokens} is less than the {longest} tokens a request may have: raise it, "
                f"lower max_model_len, or enable chunked prefill"
            )

    @property
    def capacity(self) -> int:
        """Tokens that the whole pool holds."""
        return self.num_blocks * self.block_size

    def fit(self, request_id: str, prompt_len: int, max_tokens: int | None) -> int:
        """The number of tokens that a request may generate: `max_tokens`, or with None whatever there is room for.

        Raises RequestError for an empty prompt and CapacityError, with both numbers, for a request that can never fit.
        The last token is never fed back, so it needs no slot.

        >>> config = EngineConfig(num_blocks=1, block_size=16)
        >>> config.fit("r1", 16, 1), config.fit("r2", 10, None)
        (1, 7)
        >>> config.fit("r3", 16, 2)
        Traceback (most recent call last):
        minifer.errors.CapacityError: request 'r3' needs 2 KV blocks for 16 prompt tokens + 2 new ones, but the whole
        pool has 1 of 16 tokens: shorten the request or raise num_blocks
        """
        if prompt_len < 1:
            raise RequestError(f"the prompt of request {request_id!r} is empty: it needs at least one token")
        if max_tokens is None:
            max_tokens = max(1, min(self.max_model_len or self.capacity + 1, self.capacity + 1) - prompt_len)
        asked = f"{prompt_len} prompt tokens + {max_tokens} new ones"
        if self.max_model_len is not None and prompt_len + max_tokens > self.max_model_len:
            raise CapacityError(
                f"request {request_id!r} asks for {asked} = {prompt_len + max_tokens}, but max_model_len is "
                f"{self.max_model_len}: shorten the request"
            )
        blocks = -(-(prompt_len + max(max_tokens, 1) - 1) // self.block_size)
        if blocks > self.num_blocks:
            raise CapacityError(
                f"request {request_id!r} needs {blocks} KV blocks for {asked}, but the whole pool has "
                f"{self.num_blocks} of {self.block_size} tokens: shorten the request or raise num_blocks"
            )
        return max_tokens
