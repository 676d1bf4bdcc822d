"""`minifer bench micro`: names, figures worked by hand, turns, profiles, peers; no claim about any speed."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from minifer import hub, ops
from minifer.model.config import ModelConfig
from minifer.model.cost import Work
from minifer.model.load import load_model
from minifer.roofline import profile as profiling
from minifer.roofline.probes import Ceilings
from minifer.roofline.profile import Timers, profile
from minifer.roofline.speed import Job, RoomBench, load_of, necessary_bytes

cli = pytest.importorskip("minifer.apps.cli", reason="the apps are not part of this tree")
bench_micro = pytest.importorskip("minifer.apps.bench_micro")
bench_rows = pytest.importorskip("minifer.apps.bench_rows")

TEN = Ceilings(read_bytes_per_s=10e9, flops_per_s=100e9, working_set_bytes=1, threads=2)
SMOLLM2 = ModelConfig.from_hf(hub.locate("random:smollm2-135m").config)
ROOMS = [room for room in ("reference", "cpu") if ops.importlib.util.find_spec(f"minifer.ops.{room}")]

#: What llama-bench prints for every row and what means something here, from its source (build 11434).
LLAMA_BENCH = {
    "build_number", "cpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params", "n_ubatch",
    "n_threads", "type_k", "type_v", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts",
    "stddev_ts", "samples_ns", "samples_ts",
}  # fmt: skip


@pytest.fixture
def run(capsys, monkeypatch):
    """The command line with ceilings that take no time to measure: status, stdout, stderr."""
    monkeypatch.setattr(bench_micro, "measure_ceilings", lambda *_, **__: TEN)

    def command(*words):
        status = cli.main(["bench", "micro", *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture(params=ROOMS)
def bench(request):
    """A small model in each room."""
    found = RoomBench(load_model("random:tiny"), request.param, threads=2)
    yield found
    found.close()


# --- what a job is ----------------------------------------------------------------------------------------------------


def test_the_load_of_smollm2_is_what_was_worked_out_by_hand():
    """538 MB of weights and 46,080 bytes of cache per token; 2 * matrices + 69,120 * context FLOPs and a little."""
    matrices = 134_515_008 - 61 * 576
    assert necessary_bytes(SMOLLM2, [Work(1, 1000)]) == 4 * matrices + 46_080 * 1000
    assert necessary_bytes(SMOLLM2, [Work(1, 1000)] * 8, kv_width=2) == 4 * matrices + 8 * 23_040 * 1000
    load = load_of(SMOLLM2, Job(n_gen=2, n_depth=100), TEN)
    assert load.bytes == 2 * 4 * matrices + 46_080 * (101 + 102)
    assert load.flops == pytest.approx(2 * 2 * matrices + 69_120 * (101 + 102), rel=0.01)
    assert load.least_s == pytest.approx(load.bytes / 10e9)
    prefill = load_of(SMOLLM2, Job(n_prompt=512), TEN)
    assert prefill.flops == pytest.approx(108.7e9 + 9.1e9 + 2 * 49152 * 576, rel=0.01)
    assert prefill.least_s == pytest.approx(prefill.flops / 100e9)


def test_a_window_and_an_untied_embedding_are_not_read():
    """Only what is visible, and of an untied embedding only the head's half."""
    from tests.models import CONFIGS

    near, far = (necessary_bytes(CONFIGS["mistral"], [Work(1, context)]) for context in (7, 60))
    assert near == far
    config = CONFIGS["llama2"]
    assert not config.tie_word_embeddings
    layer = 4 * 40 * (8 * 6 + 2 * 2 * 6 + 8 * 6 + 3 * 56)
    assert necessary_bytes(config, [Work(1, 1)]) == 3 * layer + 4 * 40 * 61 + config.kv_bytes_per_token


@pytest.mark.parametrize("sizes", [(0, 0), (1, 1), (-1, 0), (4, 0, -1), (4, 0, 0, 0)])
def test_a_job_is_one_thing(sizes):
    """A prompt or a generation, behind at least nothing, of at least one sequence."""
    with pytest.raises(ValueError):
        Job(*sizes)


def test_depth_is_computed_once_and_given_to_every_sequence(bench, monkeypatch):
    """Two jobs at one depth fill the cache once; all sequences hold the same past, and it is not written over."""
    lengths = []
    step = RoomBench.step
    monkeypatch.setattr(
        RoomBench, "step", lambda self, work: lengths.append([w.length for w in work]) or step(self, work)
    )
    job = Job(n_gen=3, n_depth=20, batch=4)
    bench.run(job, warm_up=True)
    past = np.array(bench._store.k(0)).reshape(2, 24, 4, 23)[..., :20]
    bench.run(job)
    assert lengths == [[20]] + [[1] * 4] * 6
    after = np.array(bench._store.k(0)).reshape(2, 24, 4, 23)
    assert (after[..., :20] == past).all()
    assert (past == past[:, :, :1]).all()
    assert past.any()
    assert (after[:, :, 0, 20:] != after[:, :, 1, 20:]).any()  # each goes on with tokens of its own


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_by_hand():
    """Three times, and every figure that is made of them."""
    columns = {"backends": "x", "model_type": "m", "model_size": 1, "model_n_params": 1, "n_threads": 2}
    row = bench_rows.make_row(Job(n_gen=8), [2.0, 1.0, 4.0], config=SMOLLM2, ceilings=TEN, ubatch=512, **columns)
    assert row["samples_ts"] == [4.0, 8.0, 2.0]
    assert row["avg_ts"] == pytest.approx(14 / 3)
    assert row["stddev_ts"] == pytest.approx(np.std([4, 8, 2], ddof=1))
    assert (row["median_ts"], row["min_ts"], row["max_ts"]) == (4.0, 2.0, 8.0)
    assert row["mbu"] == pytest.approx(row["bytes"] / 2.0 / 10e9)
    assert row["mfu"] == pytest.approx(row["flops"] / 2.0 / 100e9)
    assert row["share"] == pytest.approx(row["mbu"])
    table = bench_rows.as_markdown([row]).splitlines()
    assert len({len(line) for line in table}) == 1
    assert [cell.strip() for cell in table[2].split("|")][5:8] == ["2", "tg8", "4.67 ± 3.06"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["pp512", "tg128"]),
        (("-p", "512,64", "-n", "0", "-d", "0,100"), ["pp512", "pp64", "pp512 @ d100", "pp64 @ d100"]),
        (("-p", "0", "-n", "16", "-b", "1,8"), ["tg16", "tg16 b8"]),
    ],
)
def test_the_rows_are_those_of_llama_bench(words, names):
    """Which tests a command line asks for, in llama-bench's order."""
    parser = cli.Parser().add_subparsers()
    bench_micro.add_parser(parser)
    args = parser.choices["micro"].parse_args(["tiny", *words])
    assert [job.name for job in bench_micro.jobs_of(args)] == names


def test_json(run):
    """Rows with llama-bench's keys and both shares, room by room in turns, and the conditions."""
    words = ["random:tiny", "-p", "9", "-n", "3", "-r", "2", "-t", "1", "--room", ",".join(ROOMS), "--json"]
    status, out, _ = run(*words)
    assert status == 0
    found = json.loads(out)
    assert [(r["test"], r["backends"]) for r in found["rows"]] == [
        (test, f"minifer {room}") for test in ("pp9", "tg3") for room in ROOMS
    ]
    for row in found["rows"]:
        assert set(row) >= (LLAMA_BENCH - {"cpu_info"}) | {"mbu", "mfu"}
        assert len(row["samples_ts"]) == 2
        assert (row["mbu_of_bytes_per_s"], row["mfu_of_flops_per_s"]) == (10e9, 100e9)
    conditions = found["conditions"]
    assert {"numpy", "cpu_info", "load_average", "openblas_coretype", "dtype", "blas"} <= set(conditions)
    assert conditions["quiet"] is True
    assert conditions["threads"] == 1


def test_other_forms(run):
    """`-o json` is llama-bench's list, `-o csv` a table; the conditions then stand on stderr."""
    status, out, err = run("random:tiny", "-p", "4", "-n", "0", "-r", "1", "-o", "json")
    assert (status, [row["test"] for row in json.loads(out)]) == (0, ["pp4"])
    assert "100 % MBU = 10.0 GB/s" in err
    _, out, _ = run("random:tiny", "-p", "4", "-n", "2", "-r", "1", "-o", "csv")
    assert [row["test"] for row in csv.DictReader(out.splitlines())] == ["pp4", "tg2"]
    _, out, _ = run("random:tiny", "-p", "4", "-n", "0", "-r", "1")
    assert out.startswith("| model ")
    assert "100 % MFU = 100 GFLOP/s" in out


def test_a_busy_machine_is_said_to_be_one(run, monkeypatch):
    """Ceilings that move by more than a tenth; shares are taken of the higher one."""
    later = iter([TEN, Ceilings(12e9, 100e9, 1)])
    monkeypatch.setattr(bench_micro, "measure_ceilings", lambda *_, **__: next(later))
    _, out, _ = run("random:tiny", "-p", "4", "-n", "0", "-r", "1")
    assert "machine not quiet: the ceilings moved by +20 %" in out
    assert "100 % MBU = 12.0 GB/s" in out


def test_ctrl_c_prints_what_was_measured(run, monkeypatch):
    """The third measured repetition is interrupted: one whole row, half of the next, and the exit status of a stop."""
    calls = []

    def measured(self, job, *, warm_up=False):
        calls.append(job)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(RoomBench, "run", measured)
    status, out, err = run("random:tiny", "-p", "4", "-n", "2", "-r", "1", "-o", "csv", "-b", "1,2")
    assert (status, [row["test"] for row in csv.DictReader(out.splitlines())]) == (130, ["pp4", "tg2"])
    assert "stopped" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-p", "x"), "'x' is not a list of whole numbers"),
        (("-n", "-4"), "-4"),
        (("-p", "0", "-n", "0"), "nothing to measure"),
        (("-r", "0"), "--repetitions must be at least 1"),
        (("-b", "0"), "at least one sequence"),
        (("-t", "0"), "--threads must be between 1 and"),
        (("-d", "1000"), "pp512 @ d1000 needs 1512 positions, the model has 1024"),
        (("-n", "64", "-b", "10000000"), "lower -b or -d"),
        (("--room", "cuda"), "--room 'cuda'"),
        (("--profile", "--peers"), "--profile looks into one room"),
        (("--peer", "vllm"), "no peer is installed"),
    ],
)
def test_bad_input_is_one_line(run, words, says, tmp_path, monkeypatch):
    """Refused before anything is measured."""
    monkeypatch.setenv("MINIFER_PEERS", str(tmp_path))
    status, out, err = run("random:tiny", *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


# --- profile ----------------------------------------------------------------------------------------------------------


def test_a_timer_inside_another_stops_it(monkeypatch):
    """a runs 1, b inside it 10, a again 100; the rest around them 1000 and 10000."""
    now = iter(np.cumsum([0, 1000, 1, 10, 100, 10_000]).tolist())
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter_ns=lambda: next(now)))
    timers = Timers()
    inner = timers.wrap(lambda: None, lambda: "b")
    timers.wrap(inner, "a")()
    timers.stop()
    assert timers.ns == {"rest": 11_000, "a": 101, "b": 10}
    assert timers.calls == {"a": 1, "b": 1}


def test_a_profile_adds_up(bench):
    """Every part of the step is found, with its calls; the timers are gone afterwards."""
    before = [getattr(owner, name) for owner, name, _ in profiling.places(bench.ops, bench.weights)]
    found = profile(bench, Job(n_gen=5, n_depth=9), TEN, repeats=2)
    parts = {part.kind: part for part in found.parts}
    layers, separate = bench.config.num_hidden_layers, bench.room == "reference"
    assert {k: parts[k].calls for k in ("qkv", "output", "gate_up", "down", "head", "attention")} == {
        "qkv": layers * (3 if separate else 1), "output": layers, "gate_up": layers * (2 if separate else 1),
        "down": layers, "head": 1, "attention": layers,
    }  # fmt: skip
    assert parts["norm"].calls == 2 * layers + 1
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.timed_s)
    assert "linear" not in parts
    assert parts["gate_up"].floor_s == pytest.approx(layers * 4 * 2 * 96 * 256 / 10e9, rel=0.2)
    assert [getattr(owner, name) for owner, name, _ in profiling.places(bench.ops, bench.weights)] == before


def test_the_null_step_makes_all_calls(bench):
    """As many calls as the real step, on next to no numbers."""
    real = profile(bench, Job(n_gen=4, n_depth=8), TEN, repeats=1)
    null = profiling.null_profile(bench.config, bench.room, bench.threads, steps=2)
    assert {p.kind: p.calls for p in null.parts} == {p.kind: p.calls for p in real.parts}


def test_profile_prints_a_table_or_json(run):
    """Groups, floors, and the overhead as a share of the decode step."""
    status, out, _ = run("random:tiny", "-p", "8", "-n", "2", "--profile", "-t", "1")
    assert status == 0
    assert all(word in out for word in ("gate_up", "attention", "elementwise", "of floor", "overhead"))
    _, out, _ = run("random:tiny", "-p", "8", "-n", "2", "--profile", "--json", "-t", "1")
    found = json.loads(out)
    assert [p["test"] for p in found["profiles"]] == ["pp8", "tg2"]
    assert found["null_step"]["step_s"] > 0
