"""`minifer models` and `minifer export` on the command line."""

import hashlib
import json
from dataclasses import replace

import pytest

from minifer import hub
from minifer.apps import cli

CONTENT = b"the weights" * 100
TOY = replace(
    hub.KNOWN["smollm2-135m"], name="toy", about="a toy", file="toy.gguf", nbytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache folder of our own, a known model called toy that is not in it, and no way to fetch anything."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINIFER_OFFLINE", "1")
    monkeypatch.setattr(hub, "KNOWN", {"toy": TOY})
    return tmp_path / "home"


@pytest.fixture
def stored(home):
    path = home / "models" / "toy.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return path


def run(capsys, *words):
    status = cli.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_list_says_what_is_here(capsys, stored):
    for words in (["models"], ["models", "list"]):
        status, out, _ = run(capsys, *words)
        assert status == 0
        toy = next(line for line in out.splitlines() if line.startswith("toy"))
        assert "a toy" in toy
        assert " yes" in toy
        assert str(stored.parent.parent) in out.replace("\n", "")
    for words in (["models", "--json"], ["models", "list", "--json"]):
        rows = {row["name"]: row for row in json.loads(run(capsys, *words)[1])["models"]}
        assert rows["toy"]["path"] == str(stored)
        assert rows["toy"]["bytes"] >= len(CONTENT)
        assert "random:smollm2-135m" in rows


def test_a_model_that_is_not_here(capsys):
    rows = {row["name"]: row for row in json.loads(run(capsys, "models", "--json")[1])["models"]}
    assert (rows["toy"]["here"], rows["toy"]["path"], rows["toy"]["bytes"]) == (False, None, 0)
    status, out, err = run(capsys, "models", "where", "toy")
    assert (status, out) == (2, "")
    assert "minifer models pull" in err
    status, out, err = run(capsys, "models", "pull", "toy")
    assert (status, out) == (2, "")
    assert "MINIFER_OFFLINE" in err


def test_where_and_pull_print_the_path(capsys, stored):
    for action in ("where", "pull"):
        assert run(capsys, "models", action, "toy")[:2] == (0, f"{stored}\n")
        assert json.loads(run(capsys, "models", action, "toy", "--json")[1])["path"] == str(stored)
    assert "from a seed" in run(capsys, "models", "where", "random:smollm2-135m")[1]


def test_remove(capsys, stored):
    status, out, _ = run(capsys, "models", "remove", "toy")
    assert (status, stored.exists()) == (0, False)
    assert str(stored) in out
    assert "nothing to remove" in run(capsys, "models", "remove", "toy")[1]
    assert json.loads(run(capsys, "models", "remove", "toy", "--json")[1]) == {"name": "toy", "removed": []}


def test_only_the_cache_folder_is_removed_from(capsys, tmp_path):
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"x")
    for name in (str(mine), "tiny", "../toy"):
        status, _, err = run(capsys, "models", "remove", name)
        assert status == 2
        assert name in err
    assert mine.exists()


def test_unknown_names_and_actions(capsys):
    for words in (["models", "frobnicate"], ["models", "pull"], ["export", "tiny", "-o", "x"]):
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, "")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_export_on_the_command_line(capsys, tmp_path, monkeypatch, to):
    config = {
        "model_type": "llama", "vocab_size": 40, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    monkeypatch.setitem(hub.RANDOM_SHAPES, "small", config)
    target = tmp_path / "out"
    words = ["export", "random:small", "--to", to, "--dtype", "bf16", "-o", str(target), "--json"]
    status, out, _ = run(capsys, *words)
    assert status == 0
    answer = json.loads(out)
    assert answer["format"] == to
    assert answer["bytes"] > 2 * 40 * 24
    assert target.exists()
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "exists already" in err
