"""Open a file as memory: the operating system reads a page only when somebody looks at it.

A weight file may be larger than the RAM, and its header is a small part of it. `mmap` gives us the whole file as one
`bytes`-like object without reading it; NumPy then makes arrays that are views of the file. The pages are read-only, so
two processes with the same model share them.

Not handled: a file that somebody shortens while it is mapped. The operating system ends the process then.
"""

import mmap
from pathlib import Path

from minifer.errors import FormatError, ModelNotFoundError


def map_file(path: Path) -> mmap.mmap:
    """Map `path` read-only.

    Raises ModelNotFoundError when there is no such file, FormatError when it is empty or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except ValueError:  # mmap's word for a file of length zero
        raise FormatError(f"{path}: the file is empty; copy or download it again") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); a weight file was expected") from None
