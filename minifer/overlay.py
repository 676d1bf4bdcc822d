"""A student's file takes the reference's place: the import finder behind `minifer labs`, off by default.

With `MINIFER_LAB=<folder>` set, or a file `.minifer-lab` in the current folder, `minifer.kv_cache.pool` is loaded from
`<folder>/kv_cache/pool.py` where that file exists, else from the reference. So the whole engine, its server and their
child processes run on what the student wrote. `MINIFER_LAB=off` asks for the reference even beside a `.minifer-lab`.

What this file does not do: check or grade anything (`apps/labs/`). The modules in `NEVER` are always the reference's,
so that the program which reports on a lab runs none of the lab's code.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

NEVER = ("overlay", "errors", "formats", "apps.labs", "apps.cli", "apps.options", "apps.doctor")
"""Beginnings of names, behind `minifer.`, that a lab cannot replace."""


class Overlay(MetaPathFinder):
    """Finds modules of minifer in a lab folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """The student's file for `minifer.x.y`, or None: then the reference is found as usual."""
        file = self.folder.joinpath(*fullname.split(".")[1:]).with_suffix(".py")
        mine = fullname.startswith("minifer.") and not fullname[8:].startswith(NEVER) and file.is_file()
        return spec_from_file_location(fullname, file) if mine else None


def install() -> None:
    """Put the lab's files first, for this process and for its children."""
    folder = Path(os.environ.get("MINIFER_LAB") or ".").resolve()
    if folder.name != "off":
        os.environ["MINIFER_LAB"] = str(folder)
        sys.meta_path.insert(0, Overlay(folder))
