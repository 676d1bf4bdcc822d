"""A file or folder is there as a whole, or not at all.

Writing takes time, and meanwhile the disk fills up, somebody presses Ctrl-C, or another process starts to read. So the
bytes go to a temporary name in the *same* folder (hence on the same disk), and one rename puts them in place. A rename
is atomic: whoever opens the final name sees the old state or the new one. On every failure the temporary is removed.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from minifer.errors import MiniferError, UsageError

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done_bytes, total_bytes)`; a total of 0 means that it is not known. Apps draw bars."""


def no_progress(what: str, done: int, total: int) -> None:
    """The default: nobody is watching."""


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses, with an ending that shows what it is."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


@contextlib.contextmanager
def atomic_path(path: Path, nbytes: int = 0) -> Iterator[Path]:
    """Yield a name under which to write; what lies there becomes `path` when the block ends well, or else vanishes.

    Where `nbytes` is given, a disk with less free space is refused before the first byte is written.
    Raises MiniferError for whatever the disk refuses.
    """
    temporary = temporary_name(path)
    try:
        with explain_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            check_space(path.parent, nbytes)
            yield temporary
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_file(path: Path, nbytes: int = 0) -> Iterator[BinaryIO]:
    """The same with an open binary file, whose bytes are on the disk before the rename."""
    with atomic_path(path, nbytes) as temporary, temporary.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_folder(path: Path, nbytes: int = 0) -> Iterator[Path]:
    """The same for a folder: yields a temporary one, which becomes `path`. An occupied `path` is refused first."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists already; choose another name or remove it first")
    temporary = temporary_name(path)
    try:
        with explain_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            check_space(path.parent, nbytes)
            temporary.mkdir()
            yield temporary
            if path.is_dir():
                path.rmdir()  # empty, as checked above; Windows does not rename onto a folder
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_space(folder: Path, nbytes: int) -> None:
    """Raise the operating system's own "no space" error when fewer than `nbytes` bytes are free."""
    if nbytes > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a MiniferError that says which file could not be written, why, and what to do."""
    try:
        yield
    except OSError as error:
        advice = "free some space or choose another disk" if error.errno == errno.ENOSPC else "nothing was changed"
        raise MiniferError(f"{path} could not be written: {error.strerror or error}; {advice}") from error
