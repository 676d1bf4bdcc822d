"""The options of a load test, shared by `bench serve` and `bench compare`; names and meanings are vLLM's."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps.loadgen.client import Server
from minifer.apps.loadgen.point import Plan, parse_rates
from minifer.apps.loadgen.protocols import APIS, Ask
from minifer.apps.loadgen.wire import Address
from minifer.apps.workloads import DATASETS
from minifer.errors import MiniferError, UsageError

if TYPE_CHECKING:
    from minifer.tokenizer import Tokenizer

BACKENDS = (*APIS, "in-process")
READY_S, STARTING_S = 10.0, 600.0
"""How long to wait for a server that should be there, and for one that is being started."""
SAMPLING = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Everything about the server and the requests."""
    group = parser.add_argument_group("server")
    group.add_argument("--backend", default="openai", choices=BACKENDS, help="the API to speak (default openai)")
    group.add_argument("--base-url", metavar="URL", help="(default: http://HOST:PORT)")
    group.add_argument("--host", default="127.0.0.1", help="(default %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="(default %(default)s)")
    group.add_argument("--endpoint", metavar="PATH", help="(default: the backend's own, as /v1/completions)")
    group.add_argument("--model", metavar="NAME", help="(default: the first that the server lists)")
    group.add_argument("--served-model-name", metavar="NAME", help="what requests call it, if the server does so")
    add_request_options(parser)
    add_workload_options(parser)
    parser.add_argument("--request-rate", default="inf", metavar="R,R", help="requests per second; inf is all at once")


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """How a request is put."""
    group = parser.add_argument_group("requests")
    group.add_argument("--tokenizer", metavar="NAME", help="of the prompts: a known name, a folder, a .gguf file")
    group.add_argument("--vocab-size", type=int, metavar="N", help="for prompts of random ids, without a tokenizer")
    group.add_argument(
        "--send-ids", action="store_true", help="send prompts as token ids, not as text (backend openai)"
    )
    group.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    group.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction, default=False,
                       help="ask for answers of full length")  # fmt: skip
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="(default 0: greedy)")
    for name in SAMPLING:
        group.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help="(default: the server's)")
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="fields added to every request")
    group.add_argument("--num-warmups", type=int, default=1, metavar="N", help="sent before, in no figure (default 1)")
    group.add_argument(
        "--max-concurrency", type=int, metavar="N", help="requests under way at once (default: no limit)"
    )
    group.add_argument("--request-timeout", type=float, metavar="S", help="then a request has failed (default: never)")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    group.add_argument("--ready-check-timeout-sec", type=float, default=READY_S, metavar="S",
                       help="how long to wait for the server (default %(default)g)")  # fmt: skip


def add_workload_options(parser: argparse.ArgumentParser, num_prompts: int = 1000, input_len: int = 1024,
                         output_len: int = 128, more: Sequence[str] = ()) -> Any:  # fmt: skip
    """Which prompts, and how they arrive; `more` data sets for who has them. Returns the group."""
    group = parser.add_argument_group("workload")
    group.add_argument("--dataset-name", default="random", choices=(*DATASETS, *more), help="(default random)")
    formats = ", ".join(["JSON lines for `custom`", *(f"CSV for `{name}`" for name in more)])
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help=formats)
    group.add_argument("--num-prompts", type=int, default=num_prompts, metavar="N", help=f"(default {num_prompts})")
    group.add_argument("--seed", type=int, default=0, metavar="S", help="(default 0)")
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="B", help="below 1 bursty, inf even (default 1)"
    )
    numbers = {"--random-input-len": input_len, "--random-output-len": output_len, "--random-prefix-len": 0,
               "--prefix-repetition-prefix-len": 256, "--prefix-repetition-suffix-len": 256,
               "--prefix-repetition-num-prefixes": 10, "--prefix-repetition-output-len": 128,
               "--custom-output-len": 256}  # fmt: skip
    group.add_argument("--input-len", type=int, dest="random_input_len", metavar="N", default=argparse.SUPPRESS,
                       help="the same as --random-input-len")  # fmt: skip
    group.add_argument("--output-len", type=int, dest="random_output_len", metavar="N", default=argparse.SUPPRESS,
                       help="the same as --random-output-len")  # fmt: skip
    for name, default in numbers.items():
        group.add_argument(name, type=int, default=default, metavar="N", help="(default %(default)s)")
    group.add_argument("--random-range-ratio", default="0", metavar="R",
                       help='lengths x (1 -+ R), or {"input": R, "output": R} (default 0)')  # fmt: skip
    group.add_argument("--disable-shuffle", action="store_true", help="keep a data set's own order")
    return group


WORKLOAD_NAMES = (
    "dataset_name", "dataset_path", "num_prompts", "random_input_len", "random_output_len", "random_prefix_len",
    "prefix_repetition_prefix_len", "prefix_repetition_suffix_len", "prefix_repetition_num_prefixes",
    "prefix_repetition_output_len", "custom_output_len", "disable_shuffle",
)  # fmt: skip


def workload_of(args: argparse.Namespace) -> dict[str, Any]:
    """What `make_workload` is told of the data set. Raises UsageError."""
    options = {name: getattr(args, name) for name in WORKLOAD_NAMES}
    return options | {"random_range_ratio": _ratio(args.random_range_ratio)}


def plan_of(args: argparse.Namespace, tokenizer: "Tokenizer | None", vocab_size: int | None = None) -> Plan:
    """The sweep that a command line asks for. Raises UsageError."""
    if args.max_concurrency is not None and args.max_concurrency < 1:
        raise UsageError(f"--max-concurrency must be at least 1, not {args.max_concurrency}")
    if args.num_warmups < 0:
        raise UsageError(f"--num-warmups must be at least 0, not {args.num_warmups}")
    options = workload_of(args) | {"tokenizer": tokenizer, "vocab_size": args.vocab_size or vocab_size}
    plan = Plan(parse_rates(args.request_rate), args.seed, args.burstiness, args.num_warmups, args.max_concurrency,
                options)  # fmt: skip
    plan.arrivals(0)  # says what is wrong before anything is sent
    return plan


def _ratio(words: str) -> float | dict[str, float]:
    try:
        found = json.loads(words)
        return {name: float(value) for name, value in found.items()} if isinstance(found, dict) else float(found)
    except (ValueError, TypeError):
        raise UsageError(f'--random-range-ratio {words!r}: write 0.3 or {{"input": 0.3, "output": 0.5}}') from None


def ask_of(args: argparse.Namespace, model: str) -> Ask:
    """What every request has in common. Raises UsageError."""
    try:
        extra = json.loads(args.extra_body)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise UsageError(f"--extra-body {args.extra_body!r} is not a JSON object")
    sampling = {name: value for name in SAMPLING if (value := getattr(args, name)) is not None}
    if "top_k" in sampling:
        sampling["top_k"] = int(sampling["top_k"])
    return Ask(model, args.ignore_eos, args.send_ids, args.temperature, sampling, extra)


def server_of(args: argparse.Namespace, url: str | None = None, backend: str | None = None) -> Server:
    """The server at `url` (default --base-url). Raises UsageError."""
    pairs = [word.partition("=") for word in args.header]
    if any(not found or "\r" in value or "\n" in value for _, found, value in pairs):
        raise UsageError(f"--header {args.header}: write KEY=VALUE")
    headers = {name: value for name, _, value in pairs}
    address = Address.parse(url or args.base_url or f"http://{args.host}:{args.port}")
    if address.path == "/v1":  # as OpenAI's own clients want it
        address = Address(address.host, address.port, "", address.tls)
    return Server(
        address, APIS[backend or args.backend], headers, getattr(args, "endpoint", None), args.request_timeout
    )


def tokenizer_of(args: argparse.Namespace, model: str) -> "Tokenizer | None":
    """The tokenizer asked for, or the model's own if it is at hand; None where only --vocab-size is known.

    Nothing is downloaded for a guess. Raises UsageError if prompts could not be made.
    """
    from minifer import hub
    from minifer.tokenizer import Tokenizer

    if args.tokenizer is not None:
        return Tokenizer.from_pretrained(args.tokenizer)
    try:
        return Tokenizer.from_pretrained(hub.locate(model, download=False).path)
    except (MiniferError, OSError):
        if args.vocab_size is None and args.dataset_name != "custom":
            raise UsageError(f"prompts need the tokenizer of {model!r}, which is not here: give --tokenizer, or "
                             "--vocab-size for random token ids") from None  # fmt: skip
        return None
