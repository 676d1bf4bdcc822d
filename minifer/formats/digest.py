"""SHA-256 of a file, remembered.

A checksum answers "is this the file I mean?", and costs a walk over all its bytes: 0.1 to 0.3 s for 100 MB, minutes
for the largest models. So the answer is kept in a small file whose name is made of path, size, time of change and
inode, as git and rsync do it. If one of these changes, the file is read again.

Not handled: a file changed in place by somebody who then sets its time back. Whoever does that means it.
"""

import hashlib
from pathlib import Path

from minifer.errors import MiniferError
from minifer.formats.atomic import atomic_file, explain_os_errors


def file_sha256(path: Path, memory: Path | None = None) -> str:
    """The file's SHA-256 as 64 hexadecimal digits; `memory` is a folder in which answers are kept.

    Raises MiniferError when the file cannot be read. A memory that cannot be written is done without.
    """
    note = memory / quick_key(path) if memory else None
    known = _recall(note) if note else None
    if known:
        return known
    with explain_os_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if note:
        _remember(note, digest)
    return digest


def quick_key(path: Path) -> str:
    """A name for "this path in its present state", without reading the file: 32 hexadecimal digits."""
    with explain_os_errors(path):
        stat = path.stat()
    state = (str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _recall(note: Path) -> str | None:
    try:
        text = note.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) == 64 and not set(text) - set("0123456789abcdef") else None


def _remember(note: Path, digest: str) -> None:
    try:
        with atomic_file(note) as file:
            file.write(digest.encode("ascii"))
    except MiniferError:
        pass  # a read-only or full disk: the next start reads the file again, and that is all
