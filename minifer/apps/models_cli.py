"""`minifer models` (list, pull, where, remove) and `minifer export`: model files on this machine, in and out."""

import argparse
import json
from pathlib import Path
from typing import Any

from minifer import hub
from minifer.apps.options import ProgressBars
from minifer.errors import ModelNotFoundError, UsageError

DTYPES = {"f32": "F32", "bf16": "BF16"}


def add_parser(subparsers: Any) -> None:
    """Declare `minifer models` and `minifer export`."""
    models = subparsers.add_parser("models", help="list, pull, locate and remove models")
    models.set_defaults(run=run)
    actions = models.add_subparsers(dest="action", metavar="ACTION")
    for name, does, needs_name in ACTIONS:
        action = actions.add_parser(name, help=does)
        if needs_name:
            action.add_argument(
                "name", metavar="NAME", help="a known name" + (", or a path" if name == "where" else "")
            )
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    models.add_argument("--json", action="store_true", help="print JSON")
    export = subparsers.add_parser("export", help="write a model as a GGUF file or a Hugging Face folder")
    export.set_defaults(run=run_export)
    export.add_argument("model", metavar="MODEL", help="a known name, a folder, a .gguf file, `tiny`, or `random:NAME`")
    export.add_argument(
        "--to", choices=("gguf", "hf"), required=True, help="for llama.cpp, or for transformers and vLLM"
    )
    export.add_argument("--dtype", choices=tuple(DTYPES), default="f32", help="(default f32: the numbers as they are)")
    export.add_argument("-o", "--output", metavar="PATH", type=Path, required=True, help="the file or folder to make")
    export.add_argument("--json", action="store_true", help="print JSON")


ACTIONS = (
    ("list", "the models that have a name, and what is here (the default)", False),
    ("pull", "fetch a model into the cache folder", True),
    ("where", "print the path of a model's files", True),
    ("remove", "delete a fetched model and what was made from it", True),
)


def run(args: argparse.Namespace) -> int:
    """`minifer models ...`."""
    {"pull": pull, "where": where, "remove": remove}.get(args.action, list_models)(args)
    return 0


def list_models(args: argparse.Namespace) -> None:
    """A table on stdout; sizes in MB (10^6 bytes)."""
    rows = model_rows()
    if args.json:
        print(json.dumps({"cache": str(hub.cache_home()), "models": rows}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", "here", "MB", box=None, pad_edge=False)
    table.columns[3].justify = "right"
    for row in rows:
        size = f"{row['bytes'] / 1e6:.1f}" if row["bytes"] else ""
        table.add_row(row["name"], row["about"], "yes" if row["here"] else "no", size)
    Console().print(table)
    print(f"\ncache folder: {hub.cache_home()}")
    print("a path to a Hugging Face folder or a .gguf file is a model as well")


def model_rows() -> list[dict[str, Any]]:
    """What `models list` shows: `bytes` counts the files on this disk, those made from a model included."""
    rows = [_tiny_row()]
    for known in hub.KNOWN.values():
        here = hub.is_whole(known)
        nbytes = sum(path.stat().st_size for path in hub.stored_files(known))
        path = str(hub.stored_path(known)) if here else None
        rows.append({"name": known.name, "about": known.about, "here": here, "bytes": nbytes, "path": path})
    shapes = ["tiny", *hub.RANDOM_SHAPES]
    rows += [
        {"name": f"random:{name}", "about": "that shape, weights from a seed", "here": True, "bytes": 0, "path": None}
        for name in shapes
    ]
    return rows


def _tiny_row() -> dict[str, Any]:
    try:
        folder = hub.tiny_folder()
    except ModelNotFoundError:
        return {"name": "tiny", "about": "missing from this installation", "here": False, "bytes": 0, "path": None}
    nbytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return {"name": "tiny", "about": "bundled, for tests and labs", "here": True, "bytes": nbytes, "path": str(folder)}


def pull(args: argparse.Namespace) -> None:
    """Fetch a model unless it is here already, and print where it is."""
    with ProgressBars() as bar:
        files = hub.locate(args.name, progress=bar.update)
    _print_path(args, files)


def where(args: argparse.Namespace) -> None:
    """Print the path of a model that is here; DownloadError says how to get one that is not."""
    _print_path(args, hub.locate(args.name, download=False))


def _print_path(args: argparse.Namespace, files: hub.ModelFiles) -> None:
    path = None if files.kind == "random" else str(files.path)
    if args.json:
        print(json.dumps({"name": files.name, "kind": files.kind, "path": path}))
    else:
        print(path or f"{files.name} has no files: its weights come from a seed")


def remove(args: argparse.Namespace) -> None:
    """Delete a known model's files from the cache folder. Other models are the user's own files."""
    if args.name not in hub.KNOWN:
        known = ", ".join(hub.KNOWN)
        raise ModelNotFoundError(f"{args.name!r} is not in the cache folder's care; only {known} can be removed")
    removed = hub.remove(hub.KNOWN[args.name])
    if args.json:
        print(json.dumps({"name": args.name, "removed": [str(path) for path in removed]}))
    else:
        print("\n".join(f"removed {path}" for path in removed) or f"{args.name} is not here, nothing to remove")


def run_export(args: argparse.Namespace) -> int:
    """`minifer export MODEL --to gguf|hf -o PATH`."""
    from minifer.apps import export
    from minifer.model.load import load_model

    if args.output.exists() and not (args.to == "hf" and args.output.is_dir()):
        raise UsageError(f"{args.output} exists already; choose another name or remove it first")
    with ProgressBars() as bar:
        model = load_model(args.model, progress=bar.update)
    write = export.export_gguf if args.to == "gguf" else export.export_hf
    with ProgressBars() as bar:
        write(model, args.output, DTYPES[args.dtype], bar.update)
    nbytes = _size(args.output)
    if args.json:
        print(json.dumps({"path": str(args.output), "format": args.to, "dtype": args.dtype, "bytes": nbytes}))
    else:
        print(f"wrote {args.output} ({nbytes / 1e6:.1f} MB)")
    return 0


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in ([path] if path.is_file() else path.iterdir()))
