"""The x-ray's page cannot be broken out of, and its record says what the run did."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer import LLM
from minifer.apps import cli
from minifer.apps.view.trace_model import build
from minifer.apps.xray.page import SCRIPTS, escaped_json, live_page, page_of
from minifer.apps.xray.record import SWITCHES, Setting, record, switched
from minifer.apps.xray.roofs import add_work, config_here, roofs_for
from minifer.errors import UsageError
from minifer.limits import EngineConfig
from minifer.model.cost import Work, step_cost
from minifer.sampling_params import SamplingParams

HOSTILE = "</script><script>alert(1)</script><!-- \u2028 \u202e %%SCRIPT%% ]]> &lt; \x00 \ud800"


class Seen(HTMLParser):
    """Which elements a page consists of, and what stands in its data."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data, self._inside = [], "", False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):  # noqa: ARG002
        self._inside = False

    def handle_data(self, data):
        self.data += data if self._inside else ""


def a_run(text):
    """A run whose every text is `text`."""
    header = {"kind": "header", "minifer_trace": 1, "config": {}, "about": {"model": text, "pieces": {"7": text}}}
    return {"label": text, "records": [header]}


PLAIN = Seen(page_of([a_run("plain")])).tags


@given(
    st.text()
    | st.sampled_from([HOSTILE, "<!--", "<script", "</ScRiPt >", "\u2028\u2029", "</script /", "</script\t><b>"])
)
def test_no_text_changes_the_elements_of_the_page(text):
    seen = Seen(page_of([a_run(text)]))
    assert seen.tags == PLAIN
    assert json.loads(seen.data)["runs"] == [a_run(text)]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_escaped_json_means_the_same_and_holds_no_markup(value):
    text = escaped_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set(text) & set("<>&\n\x7f")


def test_a_placeholder_in_the_data_is_not_filled_in():
    assert Seen(page_of([a_run("%%SCRIPT%%")])).data.count("%%SCRIPT%%") == 2 + 1  # model, piece, label


def test_infinity_is_refused_rather_than_written():
    with pytest.raises(ValueError):
        escaped_json({"x": float("inf")})


def test_the_policy_names_this_page_and_forbids_the_rest():
    page, live = page_of([a_run("x")]), live_page()
    assert "default-src 'none'" in page
    assert "connect-src 'none'" in page
    assert "connect-src 'self'" in live
    assert "unsafe" not in re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert not re.search(r"(src|href)=\"(?!#)", page)


def test_every_script_is_in_the_page():
    page = live_page()
    assert all(f"// ---- {name} ----" in page for name in SCRIPTS)
    assert "innerHTML" not in page
    assert "eval(" not in page


# ---- the record of a real run ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny", num_blocks=64, max_num_seqs=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def recorded(llm):
    prompts = [tuple(range(20, 40)), tuple(range(20, 45)), (50, 51, 52)]
    params = SamplingParams(max_tokens=4, temperature=0.8, top_p=0.9, ignore_eos=True, seed=3)
    return record(llm, prompts, [params] * 3, Setting("plain", llm.limits))


def steps_of(records):
    return [one for one in records if one["kind"] == "step"]


def test_a_record_is_a_trace(recorded):
    trace = build(recorded)
    assert [len(life.token_ids) for life in trace.lives] == [4, 4, 4]
    assert trace.lives[2].refused  # two seats, three requests
    assert min(life.arrival for life in trace.lives) == 0


def test_the_work_of_a_step_is_that_of_the_cost_model(llm, recorded):
    first = steps_of(recorded)[0]
    expected = step_cost(llm.config, [Work(20, 20), Work(25, 25)], num_logits=2)
    assert {name: first["ops"][name][:2] for name in expected} == {n: [c.flops, c.bytes] for n, c in expected.items()}
    assert first["ops"]["qkv"][2] > 0
    assert sum(seconds or 0 for _, _, seconds in first["ops"].values()) <= first["end"] - first["start"] + 1e-5


def test_the_draw_is_the_token_that_came_out(recorded):
    for step in steps_of(recorded):
        for name, token, logprob, *_ in step["tokens"]:
            draw = step["draws"][name]
            row = next(row for row in draw["top"] if row[0] == token)
            assert draw["drawn"] == token
            assert row[1] == pytest.approx(2.718281828**logprob, rel=1e-3)
            assert row[2] > 0
            assert sum(p for _, p, _ in draw["top"]) <= 1.001


def test_the_instruments_change_no_token(llm, recorded):
    params = SamplingParams(max_tokens=4, temperature=0.8, top_p=0.9, ignore_eos=True, seed=3)
    plain = llm.generate([list(range(20, 40))], params)[0]
    assert build(recorded).lives[0].token_ids == plain.token_ids


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_gives_a_run(llm, switch):
    prompts = [tuple(range(20, 60)), tuple(range(20, 62))]
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    runs = [record(llm, prompts, [params] * 2, one)
            for one in (Setting("A", llm.limits), switched(llm.limits, switch, 4))]  # fmt: skip
    a, b = (build(run) for run in runs)
    assert [life.token_ids for life in a.lives] == [life.token_ids for life in b.lives]
    assert runs[0][0]["config"] != runs[1][0]["config"] or switch == "static"


def test_an_unknown_switch_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match="static"):
        switched(EngineConfig(4), "turbo", 1)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_and_the_trace_can_be_drawn_again(tmp_path, capsys):
    page, trace, again = tmp_path / "x.html", tmp_path / "t.jsonl", tmp_path / "y.html"
    words = ["xray", "tiny", "Once", "--and", "The dog", "--max-tokens", "3", "--num-blocks", "64"]
    assert cli.main([*words, "-o", str(page), "--trace-out", str(trace), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == ["continuous batching"]
    assert told["bytes"] == len(page.read_text("utf-8"))
    assert cli.main(["xray", "--trace", str(trace), "-o", str(again)]) == 0
    first, second = (json.loads(Seen(p.read_text("utf-8")).data) for p in (page, again))
    assert first["runs"][0]["records"] == second["runs"][0]["records"]
    assert first["ceilings"]["flops_per_s"] > 0
    assert "measured" in first["ceilings"]["source"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xray"], "--trace FILE"),
        (["xray", "tiny"], "a prompt"),
        (["xray", "tiny", "x", "--ab", "turbo"], "one of"),
        (["xray", "tiny", "--trace", "t.jsonl"], "no model"),
        (["xray", "tiny", "x", "-o", "/nowhere/at/all.html"], "no folder"),
    ],
)
def test_mistakes_are_explained(words, said, capsys):
    assert cli.main(words) == 2
    assert said in capsys.readouterr().err


def test_the_work_of_a_recorded_step_follows_from_its_plan(llm, recorded):
    """A trace without `ops`, of a model whose configuration is at hand, gets the same FLOPs and bytes; no times."""
    bare = [{name: value for name, value in one.items() if name != "ops"} for one in recorded]
    add_work(bare)
    for one, other in zip(steps_of(bare), steps_of(recorded), strict=True):
        assert one["ops"] == {name: [*row[:2], None] for name, row in other["ops"].items() if name in one["ops"]}


@pytest.mark.parametrize("model", ["/etc", "../tiny", "minifer", None, 7, "no-such-model"])
def test_a_trace_does_not_choose_which_files_are_read(model):
    assert config_here(model) is None


def test_a_simulated_run_stands_under_the_roof_it_was_simulated_with():
    about = {"simulated": True, "machine": "h100", "model": "random:llama-3.1-8b"}
    roofs = roofs_for([{"about": about}])
    assert roofs["read_bytes_per_s"] == 3.35e12
    assert "datasheet" in roofs["source"]
    assert roofs_for([{"about": about | {"machine": "abacus"}}]) is None
