"""The command line: it finds commands, imports one app at a time, and turns every failure into one line."""

import argparse
import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import house
import pytest

import minifer
from minifer.apps import cli
from minifer.errors import DownloadError


def minifer_command(*words, **options):
    """Run `python -m minifer WORDS` in a process of its own."""
    command = [sys.executable, "-m", "minifer", *words]
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL} | options
    return subprocess.run(command, cwd=house.ROOT, **options)


@pytest.fixture
def app(monkeypatch):
    """A command `try` whose `run` is whatever the test puts there."""
    app = SimpleNamespace(
        run=lambda args: 0, add_parser=lambda sub: sub.add_parser("try").add_argument("--n", type=int)
    )
    command = cli.Command("try", "try_app", "a test", cli.START)
    monkeypatch.setattr(cli, "available", lambda: (command,))
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: app)
    monkeypatch.delenv("MINIFER_DEBUG", raising=False)
    return app


def raiser(error):
    """An app that fails with `error`."""

    def run(args):
        raise error

    return run


def test_help_lists_what_is_there_in_groups(capsys):
    """Help names every command whose module exists, the first five before all others."""
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    names = [line.split("  ")[1] for line in text.splitlines() if line.startswith("  ")]
    assert names == [c.name for c in cli.available()]
    assert names[:2] == ["demo", "run"]
    assert text.index("start here:") < text.index("text and models:")


def test_version_is_that_of_the_package(capsys):
    """One version, in the package and in pyproject.toml."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"minifer {minifer.__version__}\n"
    assert f'version = "{minifer.__version__}"' in (house.ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", cli.available(), ids=lambda c: c.name)
def test_every_command_explains_itself(command):
    """`minifer COMMAND --help` works for each, so each has a parser under its own name."""
    result = minifer_command(*command.name.split(), "--help")
    assert result.returncode == 0, result.stderr
    assert f"usage: minifer {command.name}" in result.stdout


def test_a_misspelt_command_is_guessed(capsys):
    """The nearest name is offered, on one line."""
    assert cli.main(["dmeo"]) == 2
    assert capsys.readouterr().err == "minifer: there is no command 'dmeo'; did you mean `minifer demo`?\n"


def test_bench_needs_a_kind(capsys, monkeypatch):
    """A family of commands names its members."""
    kinds = tuple(cli.Command(f"bench {n}", "m", "", cli.BENCH) for n in ("one", "two"))
    monkeypatch.setattr(cli, "available", lambda: kinds)
    assert cli.main(["bench"]) == 2
    assert cli.main(["bench", "three"]) == 2
    assert capsys.readouterr().err == "minifer: `minifer bench` needs one of: one, two\n" * 2


def test_a_wrong_argument_is_one_line(app, capsys):
    """argparse's usage dump is left to --help."""
    assert cli.main(["try", "--n", "x"]) == 2
    assert capsys.readouterr().err == ("minifer: argument --n: invalid int value: 'x' (see `minifer try --help`)\n")


def test_options_may_stand_between_positional_arguments(app):
    """`run MODEL --json PROMPT`, which argparse alone reads as `run MODEL` and a stray word."""
    seen = []
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompt", nargs="?")
    parser.add_argument("--json", action="store_true")
    app.add_parser = lambda sub: sub.choices.update({"try": parser})
    app.run = lambda args: seen.append((args.command, args.model, args.prompt, args.json)) or 0
    assert cli.main(["try", "tiny", "--json", "hello"]) == 0
    assert seen == [("try", "tiny", "hello", True)]


def test_expected_errors_are_one_line_and_2(app, capsys):
    """What a MiniferError says is all that is printed, line breaks included."""
    app.run = raiser(DownloadError("no network\nat all"))
    assert cli.main(["try"]) == 2
    assert capsys.readouterr() == ("", "minifer: no network at all\n")


def test_unexpected_errors_name_themselves_and_the_way_to_the_traceback(app, capsys):
    """A bug is not dressed up as the user's mistake."""
    app.run = raiser(KeyError("q_proj"))
    assert cli.main(["try"]) == 1
    assert capsys.readouterr().err.startswith(
        "minifer: unexpected KeyError: 'q_proj' (this is a bug; set MINIFER_DEBUG=1"
    )


def test_debug_shows_the_traceback(app, monkeypatch):
    """With MINIFER_DEBUG the error itself comes through."""
    monkeypatch.setenv("MINIFER_DEBUG", "1")
    app.run = raiser(KeyError("q_proj"))
    with pytest.raises(KeyError):
        cli.main(["try"])


def test_ctrl_c_is_130(app, capsys):
    """Ctrl-C ends with the shell's own status and no traceback."""
    app.run = raiser(KeyboardInterrupt())
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == "minifer: stopped\n"


def test_a_full_disk_says_what_to_do(app, capsys):
    """The one OSError that a model download really meets."""
    app.run = raiser(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.gguf"))
    assert cli.main(["try"]) == 2
    assert "the disk is full (model.gguf); free some space, or set MINIFER_HOME" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently on Windows")
def test_a_reader_that_leaves_is_no_error():
    """`minifer --help | head -1`: no traceback, no complaint at shutdown."""
    read, write = os.pipe()
    os.close(read)
    result = minifer_command("--help", capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


def test_help_imports_no_app():
    """The front door is quick: no NumPy, no rich, no model code."""
    code = "import sys; from minifer.apps.cli import main; main(['--help']); print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=house.ROOT, check=True)
    assert "'minifer.apps.cli'" in result.stdout
    assert not [m for m in ("numpy", "rich", "matplotlib", "minifer.llm") if f"'{m}'" in result.stdout]
