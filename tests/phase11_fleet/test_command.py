"""`minifer simulate` as it is typed, and the measured step times of this machine (on `tiny`; figures mean nothing)."""

import json

import pytest
from fleet_times import fitted

from minifer.apps import cli
from minifer.apps.simulate import stored, validate
from minifer.apps.simulate.calibrate import Calibration
from minifer.apps.simulate.fit import fit
from minifer.apps.simulate.steptime import Features
from minifer.llm import LLM

H100 = ["--machine", "h100"]
SMALL = ["--num-prompts", "30", "--random-input-len", "20", "--random-output-len", "8", "--request-rate", "100"]


def run(capsys, *words):
    status = cli.main(["simulate", *words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny", max_num_seqs=3, max_num_batched_tokens=64) as made:
        yield made


def test_a_run_as_json_has_vllms_keys(capsys):
    status, out, _ = run(capsys, "tiny", *H100, *SMALL, "--replicas", "2", "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["completed"], found["refused"], found["total_output_tokens"]) == (30, 0, 240)
    assert [row["requests"] for row in found["replicas"]] == [15, 15]
    assert found["p99_ttft_ms"] >= found["p50_ttft_ms"] > 0
    assert found["p99_itl_ms"] is not None


def test_a_run_for_people_says_what_it_stands_on(capsys):
    status, out, _ = run(capsys, "tiny", "--machine", "l4", "--tensor-parallel-size", "2", *SMALL)
    assert status == 0
    assert "30 answered" in out
    assert "a best case, not a measurement" in out
    assert "all-reduce takes" in out


def test_several_rates(capsys, tmp_path):
    words = [*SMALL[:-1], "50,inf", "--figure", str(tmp_path / "rates.png")]
    status, out, _ = run(capsys, "tiny", *H100, *words, "--json")
    assert status == 0
    assert [row["request_rate"] for row in json.loads(out)["rows"]] == [50.0, "inf"]
    assert (tmp_path / "rates.png").stat().st_size > 10_000


def test_recorded_traffic_from_a_file(capsys, tmp_path):
    path = tmp_path / "traffic.csv"
    rows = [f"2023-11-16 18:15:{10 + i}.25,{5 + i},{3 + i}" for i in range(20)] + ["2023-11-16 18:16:00,5000,1"]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n", "utf-8")
    words = ["--dataset-name", "azure", "--dataset-path", str(path)]
    status, out, _ = run(capsys, "tiny", *H100, *words, "--save-result", str(tmp_path / "r.json"))
    found = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert status == 0
    assert (found["completed"], found["refused"]) == (20, 1)
    assert found["total_output_tokens"] == sum(3 + i for i in range(20))
    assert "1 refused" in out
    assert "5000 prompt tokens" in out


def test_capacity_as_a_table_and_as_json(capsys, tmp_path):
    words = ["capacity", "tiny", "--machine", "t4", "--dtype", "float16", "--efficiency", "0.001", *SMALL[:-2],
             "--slo", "ttft:50", "tpot:20", "--vary", "replicas=1,2", "--max-num-seqs", "4"]  # fmt: skip
    status, out, _ = run(capsys, *words, "--json", "--figure", str(tmp_path / "c.svg"))
    rows = json.loads(out)["rows"]
    assert status == 0
    assert [row["replicas"] for row in rows] == [1, 2]
    assert 1.7 < rows[1]["rate"] / rows[0]["rate"] < 3
    assert "<title" in (tmp_path / "c.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny", "tiny"], "takes one model, not tiny and tiny"),
        (["tiny", "--machine", "abacus"], "no figures for the hardware 'abacus'"),
        (["tiny", *H100, "--slo", "ttft"], "--slo 'ttft': write ttft:MS"),
        (["tiny", *H100, "--slo", "speed:3"], "--slo 'speed:3': write"),
        (["tiny", *H100, "--figure", "a.gif"], "a figure is written as .svg or .png"),
        (["tiny", *H100, "--dataset-name", "azure"], "needs --dataset-path"),
        (["tiny", *H100, "--dataset-name", "azure", "--dataset-path", "no.csv"], "there is no file no.csv"),
        (["tiny", *H100, "--num-prompts", "0"], "at least 1 prompt"),
        (["tiny", *H100, "--replicas", "0"], "at least one replica, not 0"),
        (["tiny", *H100, "--trace", "no/such/folder/t"], "cannot be written"),
        (["tiny", "--efficiency", "0.5"], "not for `here`"),
        (["tiny", *H100, "--slo", "ttft:9", "ttft:8"], "ttft is there twice"),
        (["tiny", *H100, "--replicas", "1000000000"], "at most 4096"),
        (["tiny", *H100, "--num-prompts", "1000000000000"], "does not fit into memory"),
        (["tiny", *H100, "--random-input-len", "1000000000"], "does not fit into memory"),
        (["tiny", *H100, "--step-overhead-us", "nan"], "--step-overhead-us must be at least 0, not nan"),
        (["tiny", *H100, "--link-latency-us", "-1"], "--link-latency-us must be at least 0, not -1"),
        (["tiny", *H100, "--dataset-path", "no.jsonl"], "goes with the data set custom, not random"),
        (["tiny", *H100, "--save-result", "."], "--save-result . cannot be written: it is a folder"),
        (["tiny", *H100, "--figure", "no/such/a.svg"], "there is no folder no/such"),
        (["tiny", *H100, "--vary", "replicas=1"], "`minifer simulate` makes no use of --vary"),
        (["capacity", "tiny", *H100, "--request-rate", "5"], "makes no use of --request-rate"),
        (["validate", "tiny", "--replicas", "3"], "`minifer simulate validate` makes no use of --replicas"),
        (["capacity", "tiny", *H100, "--target", "2"], "above 0 and at most 1, not 2"),
        (
            ["capacity", "tiny", *H100, "--json", "--random-input-len", "64", "--vary", "replicas=64"],
            "requests a second",
        ),
        (["capacity", "tiny", *H100, "--num-prompts", "5"], "too few to speak of shares"),
        (["capacity", "tiny", *H100, "--vary", "color=red"], "--vary 'color=red'"),
        (["validate", "tiny", *H100], "only this machine can be validated"),
        (["no-such-model", *H100], "no-such-model"),
    ],
)
def test_bad_words_are_one_line(capsys, words, said):
    status, out, err = run(capsys, *words)
    assert status == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


# ---- step times of this machine --------------------------------------------------------------------------------------


def test_a_calibration_meets_every_kind_of_step(llm):
    samples = Calibration(llm).run()
    decodes = {s.features.decodes for s in samples if not s.features.chunks}
    chunks = {length for s in samples for length, _ in s.features.chunks}
    mixed = [s for s in samples if s.features.chunks and s.features.decodes]
    assert decodes >= {1, 2, 3}
    assert chunks >= {2, 3, 5, 8, 12, 16, 24, 32, 48, 64}
    assert mixed
    assert {s.features.seen // s.features.decodes >= 500 for s in samples if not s.features.chunks} == {True, False}
    assert all(s.seconds > 0 for s in samples)
    assert fit(samples, 1024).seconds(Features(1, 20, 1)) > 0
    assert llm.engine.trace is None


def test_a_calibration_is_kept_and_found_again(tmp_path):
    time = fitted((1, 4), (0.01, 0.02), key_s=1e-6)
    kept = stored.Stored(time, 0.03, {"date": "today"})
    stored.save(tmp_path / "s.json", kept)
    assert stored.load(tmp_path / "s.json") == kept
    (tmp_path / "s.json").write_text("{}", "utf-8")
    assert stored.load(tmp_path / "s.json") is None
    assert stored.load(tmp_path / "none.json") is None


def test_real_and_simulated_serve_the_same_requests(llm):
    """The figures of `tiny` on a busy machine say nothing; that both answered everything does."""
    time = fitted((1, 4), (0.001, 0.002))
    workloads = validate.workloads(llm, time, 6, seed=1)
    assert set(workloads) == set(validate.LOADS)
    arrivals = [a.__class__(a.index, 0.0, a.prompt_ids[:40], 5) for a in workloads["steady"]]
    real = validate.run_real(llm, arrivals)
    simulated = validate.simulate(llm.limits, 1024, time, arrivals)
    for tally in (real, simulated):
        assert [m.output_tokens for m in tally.finished] == [5] * 6
    comparison = validate.Comparison("steady", real.summary(), simulated.summary())
    assert [row["figure"] for row in comparison.rows()] == list(validate.COMPARED)


def test_a_config_nested_without_end_is_one_line(capsys, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000, "utf-8")
    status, _, err = run(capsys, str(tmp_path / "deep.json"), *H100)
    assert status == 2
    assert "is not a config.json" in err
