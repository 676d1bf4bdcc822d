"""`minifer bench gpu`: the whole command on the stand-in, phases that fail, and the table made of its records."""

import json
import subprocess
import sys

import pytest

from minifer.apps import bench_gpu, bench_gpu_peer, bench_gpu_table
from minifer.apps.cli import main
from minifer.apps.testing.gpu_record import default_path
from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.apps.view.gpu_figures import draw
from minifer.device import why_no_gpu
from minifer.errors import FormatError, MiniferError
from tests.house import ROOT

needs_compiler = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A run on the stand-in, with the modules gone that a bare machine may lack."""
    path = tmp_path_factory.mktemp("gpu") / "deep" / "record.json"
    code = (
        "import sys\n"
        "for name in ('gguf', 'matplotlib', 'tokenizers', 'hypothesis'): sys.modules[name] = None\n"
        "from minifer.apps.cli import main\n"
        f"sys.exit(main(['bench', 'gpu', '--device', 'strict', '--results', {str(path)!r}, '--dtype', 'float16']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "minifer: the record is in" in done.stderr
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
@needs_compiler
def test_every_phase_runs_without_gguf(record):
    """On the stand-in, with `tiny`: no phase fails, and every part of the record is there."""
    assert not [name for name, phase in record["phases"].items() if "error" in phase]
    assert list(record["phases"]) == ["ceilings", "kernels", "facts", "model tiny", "transformers tiny", "marks"]
    assert set(record["kernels"].values()) == {"right"}
    jobs = [row["job"] for row in record["models"]["tiny"]["rows"]]
    assert jobs == ["decode b1 @ 5, graph", "decode b1 @ 5, eager", "prefill 7"]
    assert all(row["seconds"] > 0 and row["flops"] > 0 for row in record["models"]["tiny"]["rows"])


@pytest.mark.slow
@needs_compiler
def test_the_facts_are_those_that_the_design_rests_on(record):
    """The stand-in refuses what a GPU is expected to refuse; everything else has a number."""
    facts = record["facts"]
    assert facts["recording_a_product"].startswith("NotImplementedError")
    assert "dimensions" in facts.pop("products_in_three_dimensions")
    facts.pop("recording_a_product")
    assert not [name for name, value in facts.items() if isinstance(value, str)]


class Broken(bench_gpu.Job):
    """A job whose phases do as they please."""

    def phases(self):
        def fine():
            self.record["fine"] = True

        def fails():
            raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

        def expected():
            raise MiniferError("too little memory")

        return [("a", fails), ("b", expected), ("c", fine)]


def test_one_failing_phase_does_not_lose_the_others(tmp_path, monkeypatch):
    """Each is recorded, and the file is whole after every one of them."""
    monkeypatch.setattr(bench_gpu, "Job", Broken)
    path = tmp_path / "r.json"
    assert main(["bench", "gpu", "--device", "strict", "--results", str(path)]) == 1
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["phases"]["a"]["error"].startswith("RuntimeError: cudaErrorIllegalAddress")
    assert record["phases"]["b"]["error"] == "too little memory"
    assert record["fine"] is True


def test_nothing_is_begun_after_the_limit(tmp_path, monkeypatch):
    """So that the whole ends in time, whatever the machine."""
    monkeypatch.setattr(bench_gpu, "Job", Broken)
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path))
    path = tmp_path / "bench-gpu-strict.json"
    assert main(["bench", "gpu", "--dry-run", "--limit", "-1"]) == 1
    record = json.loads(path.read_text(encoding="utf-8"))
    assert all(phase["error"].startswith("not begun") for phase in record["phases"].values())
    assert "fine" not in record


def test_without_a_gpu_one_clear_line(capsys):
    """Never a silent fallback."""
    if why_no_gpu() is None:
        pytest.skip("there is a GPU")
    assert main(["bench", "gpu"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("minifer: there is no GPU to measure: ")
    assert err.count("\n") == 1


def row(job, seconds, **more):
    """A row of a record with round numbers."""
    return {"job": job, "seconds": seconds, "tokens_per_s": 1 / seconds, "share": 0.5, "bound_by": "reading", **more}


def made_up():
    """A record as a GPU might leave it."""
    small = {
        "model": bench_gpu.SMALL_MODEL, "dtype": "bfloat16", "launches_per_step": 304,
        "rows": [row("decode b1 @ 512, graph", 0.001), row("decode b1 @ 512, eager", 0.004),
                 {"job": "prefill 512", "error": "out of memory"}],
    }  # fmt: skip
    large = {
        "model": bench_gpu.LARGE_MODEL, "dtype": "bfloat16", "launches_per_step": 164,
        "rows": [row("decode b1 @ 512, graph", 0.002, bytes_per_s=1.5e12), row("prefill 2048", 0.02, flops_per_s=4e14)],
    }  # fmt: skip
    models = {m["model"]: m for m in (small, large)}
    environment = {"gpu": {"name": "Imaginary 9000"}, "time": "2031-02-03T04:05:06+00:00", "commit": "abc1234",
                   "python": "3.12.3", "packages": {"cupy-cuda13x": "14.2.0"}}  # fmt: skip
    ceilings = {"read_bytes_per_s": 3e12, "copy_bytes_per_s": 2e12, "launch_s": 4e-6, "flops_per_s": {"bfloat16": 8e14}}
    peers = {bench_gpu.SMALL_MODEL: {"versions": {"transformers": "5.1"}, "rows": {"decode b1": {"tokens_per_s": 77}}},
             bench_gpu.LARGE_MODEL: {"left_out": "not installed: torch"}}  # fmt: skip
    facts = {"array_addition": {"gpu_us": 8.0, "queue_us": 9.5}, "recording_a_product": "NotImplementedError"}
    marks = bench_gpu.marks(models, {"bytes_per_s": 3e12, "flops_per_s": 8e14})
    return {"kind": "bench", "environment": environment, "device": "cuda:0", "ceilings": ceilings, "models": models,
            "peers": peers, "facts": facts, "marks": marks,
            "phases": {"model x": {"error": "out of memory"}}}  # fmt: skip


def test_the_marks_are_ratios_of_the_record():
    """Half the bandwidth, four times eager, half the products; what is missing is None."""
    found = {name: mark["reached"] for name, mark in made_up()["marks"].items()}
    assert found == {"decode_of_bandwidth": 0.5, "graph_over_eager": 4.0, "prefill_of_products": 0.5}
    assert {m["reached"] for m in bench_gpu.marks({}, {"bytes_per_s": 1.0, "flops_per_s": 1.0}).values()} == {None}


def test_the_table_is_made_of_records_alone(tmp_path):
    """GPU, versions, rows with the peer's beside them, failures, marks."""
    (tmp_path / "a.json").write_text(json.dumps(made_up()), encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps({"kind": "tests", "environment": {"gpu": {}}}), encoding="utf-8")
    text = "\n".join(bench_gpu_table.lines(bench_gpu_table.read_records(tmp_path)))
    assert "### Imaginary 9000" in text
    assert "2031-02-03, commit abc1234, Python 3.12.3, cupy-cuda13x 14.2.0." in text
    assert "| decode b1 @ 512, graph | 1 | 1,000 | 50% | reading | 77 |" in text
    assert "| prefill 2048 | 20 | 50 | 50% | reading | not installed: torch |" in text
    assert "| prefill 512 | failed: out of memory |" in text
    assert "| graph against single launches, 135M | 2 | 4 |" in text
    assert "Failed: model x: out of memory" in text


def test_the_ceiling_of_launches_is_told():
    """One by one what the slower side takes, from a graph the nodes and one start."""
    facts = {
        "launch_of_a_kernel": {"gpu_us": 4.0, "queue_us": 5.0},
        "node_of_a_graph": {"node_us": 1.5, "launch_us": 9},
    }
    told = "304 launches a decode step: 1.52 ms one by one, 0.465 ms from a graph"
    assert bench_gpu_table.launch_ceiling(304, facts) == told


def test_the_roofline_of_a_record(tmp_path):
    """A panel for each model with measured rows; nothing without them."""
    record = made_up()
    for model in record["models"].values():
        for i, one in enumerate(r for r in model["rows"] if "seconds" in r):
            one |= {"flops": 2e9, "flops_per_byte": 1.0 + i, "flops_per_s": 2e9 / one["seconds"]}
    path = draw(record, tmp_path / "gpu.png")
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")
    assert draw(record | {"models": {}}, tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


def test_the_section_is_replaced_and_nothing_else():
    """What stands before and behind it stays; without a record it says so."""
    text = "# Results\n\n## GPU\n\nold\n\n## After\n\nstays\n"
    new = bench_gpu_table.with_table(text, [made_up()])
    assert new.startswith("# Results\n\n## GPU\n\n### Imaginary 9000")
    assert new.endswith("\n\n## After\n\nstays\n")
    assert (
        bench_gpu_table.with_table(new, [])
        == f"# Results\n\n## GPU\n\n{bench_gpu_table.NOTHING}\n\n## After\n\nstays\n"
    )
    with pytest.raises(MiniferError, match="no section"):
        bench_gpu_table.with_table("# Results\n", [])


def test_results_md_is_up_to_date():
    """The committed page is what the committed records say."""
    records = bench_gpu_table.read_records(ROOT / bench_gpu_table.RESULTS_FOLDER)
    text = bench_gpu_table.RESULTS.read_text(encoding="utf-8")
    assert bench_gpu_table.with_table(text, records) == text


def test_a_file_that_is_no_record_is_named(tmp_path):
    """One line, with the file's name."""
    (tmp_path / "x.json").write_text("[1, 2", encoding="utf-8")
    with pytest.raises(FormatError, match=r"x\.json is no record of a GPU"):
        bench_gpu_table.read_records(tmp_path)


def test_records_have_names_that_sort():
    """GPU and time; into the checkout."""
    path = default_path({"gpu": {"name": "NVIDIA H200"}, "time": "2031-02-03T04:05:06+00:00"})
    assert path == ROOT / "tests" / "gpu_results" / "bench-nvidia-h200-20310203T040506.json"


def test_a_peer_that_fails_is_one_line(monkeypatch):
    """Whatever happened in the child process."""
    monkeypatch.setattr(bench_gpu_peer, "LIMIT_S", 60)
    with pytest.raises(MiniferError, match="transformers failed"):
        bench_gpu_peer.measure_apart("no-such-model", dtype="float16", prompts=(4,), generate=2, batches=(1,))
