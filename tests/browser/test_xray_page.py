"""The x-ray's page in a real browser: what it shows, how it is used, and what it must withstand."""

import json
from pathlib import Path

import pytest

from minifer.apps.view.trace_blocks import History
from minifer.apps.view.trace_model import build
from minifer.apps.xray.page import page_of
from minifer.formats.trace_lines import read_trace

pytestmark = pytest.mark.browser

TRACES = Path(__file__).parents[2] / "diagrams" / "traces"
FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def step(number, start, end, seqs, tables, tokens, load, **more):
    """A line of a trace; what is not given did not happen."""
    nothing = {"copies": [], "admitted": [], "preempted": [], "refused": [], "counts": {}}
    return {"kind": "step", "step": number, "start": start, "end": end, "seqs": seqs, "tables": tables,
            "tokens": tokens, "load": load, **nothing, **more}  # fmt: skip


def asked(name, prompt):
    """A request that is there at second 10."""
    return {"kind": "request", "time": 10.0, "id": name, "arrival": 10.0, "prompt": prompt, "max_tokens": 3,
            "priority": 0, "siblings": 0}  # fmt: skip


def by_hand(pieces=None):
    """One seat, blocks of four: r1 computes six tokens in 80 ms and decodes twice, 20 ms each; r2 waits for the seat,
    finds one block of r1's in the cache, computes two tokens in 30 ms."""
    about = {"model": "by hand", "kv_bytes_per_token": 100, "pieces": pieces or {str(i): f" w{i}" for i in range(40)}}
    config = {"num_blocks": 6, "block_size": 4, "max_num_seqs": 1, "enable_prefix_caching": True}
    full = [["r2", "all 1 seats are taken"]]
    return [
        {"kind": "header", "minifer_trace": 1, "config": config, "about": about},
        asked("r1", [1, 2, 3, 4, 5, 6]),
        asked("r2", [1, 2, 3, 4, 9, 8]),
        step(1, 10.0, 10.08, [["r1", "prefill", 0, 6, True]], {"r1": [0, 1]}, [["r1", 20, -0.5, None, None]],
             [1, 1, 1, 4], admitted=[["r1", 0]], refused=full),
        step(2, 10.08, 10.1, [["r1", "decode", 6, 1, True]], {}, [["r1", 21, -0.5, None, None]], [1, 1, 1, 4],
             refused=full),
        step(3, 10.1, 10.12, [["r1", "decode", 7, 1, True]], {}, [["r1", 22, -0.5, "length", None]], [1, 1, 1, 4],
             refused=full),
        step(4, 10.12, 10.15, [["r2", "prefill", 4, 2, True]], {"r2": [0, 2]}, [["r2", 23, -1.0, "length", None]],
             [1, 0, 1, 4], admitted=[["r2", 4]]),
    ]  # fmt: skip


def page_with(*runs):
    """The page of some traces."""
    return page_of([{"label": f"run {i}", "records": records} for i, records in enumerate(runs)])


def stored(name):
    """One of the committed traces of real runs."""
    return list(read_trace(TRACES / f"{name}.jsonl"))


def text(page, name):
    """The text of the element with that id."""
    return page.inner_text(f"#{name}")


def many(requests, tokens, seats):
    """A large trace: `requests` in `seats`, each a prompt of 5 and `tokens` decode steps."""
    records = by_hand()[:1]
    records[0]["config"] = {"num_blocks": 4 * seats, "block_size": 16, "max_num_seqs": seats}
    records += [asked(f"r{i}", [1, 2, 3, 4, 5]) for i in range(requests)]
    number = 0
    for first in range(0, requests, seats):
        names = [f"r{i}" for i in range(first, min(requests, first + seats))]
        for at in range(tokens + 1):
            number += 1
            seqs = [[n, "decode", 4 + at, 1, True] if at else [n, "prefill", 0, 5, True] for n in names]
            out = [[n, 7, -1.0, "length" if at == tokens else None, None] for n in names]
            tables = {} if at else {n: [4 * i] for i, n in enumerate(names)}
            left = requests - first - len(names)
            load, let_in = [len(names), left, len(names), 9], [] if at else [[n, 0] for n in names]
            times = 10 + number / 50, 10 + (number + 1) / 50
            records.append(step(number, *times, seqs, tables, out, load, admitted=let_in))
    return records


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_the_five_answers_are_those_of_the_run(open_page):
    page = open_page(page_with(by_hand()))
    faster, waited, memory, cost, _ = page.locator(".story").all_inner_texts()
    assert "first token of r1 took 80 ms" in faster
    assert "6 prompt tokens had to be computed, in 1 step" in faster
    assert "The second took 20 ms" in faster
    assert "4 times as fast" in faster
    assert "r2 waited 120 ms for a seat: the only one was taken" in waited
    assert "turned away 3 times, until step 4" in waited
    assert "6 prompt tokens of r1 keep their keys and values in 2 blocks" in memory
    assert "number 0, 1), 600 B at 100 bytes a token" in memory
    assert "The 3 tokens of r1's answer took 120 ms and 3 steps. 8 tokens went through the model" in cost
    assert "6 in prefill" in cost


def test_the_blocks_of_a_step(open_page):
    page = open_page(page_with(by_hand()))
    assert page.evaluate("minifer.usage(0)") == {
        "held": 2,
        "idle": 0,
        "written": 6,
        "wasted": 2,
        "shared": 0,
        "saved": 0,
    }
    # r1 is done; its second block became full with position 7, and can still be found
    assert page.evaluate("minifer.usage(3)") == {
        "held": 2,
        "idle": 1,
        "written": 6,
        "wasted": 2,
        "shared": 0,
        "saved": 0,
    }
    page.evaluate("minifer.goTo(3)")
    assert "2 of 6 blocks are held" in text(page, "map-note")
    assert "found 4 tokens of its prompt in the cache" in text(page, "sentence")


@pytest.mark.parametrize("name", ["blocks", "static", "continuous", "chunked"])
def test_page_and_figures_tell_the_same_of_a_real_run(open_page, name):
    trace = build(stored(name))
    page = open_page(page_with(stored(name)))
    told = page.evaluate("""() => { const run = minifer.state.runs[0]; return {
        stays: run.stays.map(s => [s.life, s.slot, s.first, s.last]),
        lives: run.lives.map(l => [l.key, run.ttft(l), run.queue(l), run.cached(l), l.tokens]),
        usage: run.steps.map(s => minifer.usage(s.index)), steps: run.steps.map(s => s.ms)}; }""")
    assert sorted(told["stays"]) == sorted([s.life, s.slot, s.first, s.last] for s in trace.stays())
    for life, (key, ttft, queue, cached, tokens) in zip(trace.lives, told["lives"], strict=True):
        metrics = life.metrics()
        assert (key, cached, tokens) == (life.id, life.cached, life.token_ids)
        assert ttft == pytest.approx(1e3 * metrics.ttft)
        assert queue == pytest.approx(1e3 * metrics.queue_time)
    for row, usage in zip(History(trace).usage(), told["usage"], strict=True):
        assert usage == {"held": row.held, "idle": row.idle, "written": row.written, "wasted": row.wasted,
                         "shared": row.shared, "saved": row.saved}  # fmt: skip
    assert told["steps"] == pytest.approx([1e3 * s.seconds for s in trace.steps])


def test_a_against_b(open_page):
    page = open_page(page_with(stored("continuous"), stored("static")))
    assert "run 0\u201d was done 1." in text(page, "compare-note")
    assert "seats paid for and empty" in text(page, "compare")
    seats = page.evaluate("minifer.state.runs.map(r => r.steps.reduce((n, s) => n + s.seats - s.running, 0))")
    assert seats[0] == 0 < seats[1]
    page.check("input[name=run][value='1']")
    assert page.evaluate("minifer.state.shown") == 1
    assert "static batching" in text(page, "facts")


def test_perfetto_gets_every_piece_of_work(open_page):
    page = open_page(page_with(by_hand()))
    with page.expect_download() as download:
        page.click("#export")
    events = json.loads(Path(download.value.path()).read_text("utf-8"))["traceEvents"]
    work = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert work == [("r1 prefill", 0, 80_000), ("r1 decode", 80_000, 20_000), ("r1 decode", 100_000, 20_000),
                    ("r2 prefill", 120_000, 30_000)]  # fmt: skip


def test_quiz_hides_the_answers_until_a_guess(open_page):
    page = open_page(page_with(by_hand()))
    page.click("#quizzer")
    assert not page.is_visible("#stories")
    assert "80 ms" not in text(page, "quiz")
    assert "What did r2 wait for before it was started?" in text(page, "quiz")
    assert "How many blocks does the prompt need?" in text(page, "quiz")
    page.get_by_label("step 1, with a prompt to compute").check()
    page.get_by_label("nothing: it was let in at once").check()
    assert "Right. Step 1 took 80 ms" in text(page, "quiz")
    assert "Not in this run: a free seat in the batch." in text(page, "quiz")
    assert "1 of 2 right so far." in text(page, "quiz")
    page.get_by_role("button", name="Show step 1").first.click()
    assert "Step 1 of 4" in text(page, "sentence")


# ---- how it is used --------------------------------------------------------------------------------------------------


def test_every_pane_follows_the_scrubber(open_page):
    page = open_page(page_with(by_hand()))
    page.fill("#slider", "1")
    page.evaluate(FRAME)
    assert "Step 2 of 4, 20 ms: decode of r1" in text(page, "sentence")
    assert page.locator(".chip.now .token").all_inner_texts() == ["\u00b7w21"]
    assert page.locator(".chip.later").count() == 1
    assert "decode" in text(page, "now")
    assert page.get_attribute("#slider", "aria-valuetext") == "step 2 of 4"


def test_keyboard_alone_is_enough(open_page):
    page = open_page(page_with(by_hand()))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.focus("#theme")
    page.keyboard.press("ArrowRight")
    assert "Step 2 of 4" in text(page, "sentence")
    page.keyboard.press("End")
    assert "Step 4 of 4" in text(page, "sentence")
    page.focus("details[data-table=map] summary")
    page.keyboard.press("Enter")
    assert "r2" in page.inner_text("details[data-table=map] table")
    nameless = page.evaluate("""[...document.querySelectorAll('button, input, select, [tabindex="0"]')]
        .filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)""")
    assert nameless == []


def test_an_answer_leads_to_the_pane_it_comes_from(open_page):
    page = open_page(page_with(by_hand()), reduced_motion="reduce")  # or else it would still be on its way
    page.get_by_role("button", name="Show step 1 in the KV cache").press("Enter")
    assert page.evaluate("document.activeElement.id") == "h-map"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") < 900


def test_what_was_asked_and_answered(open_page):
    records = by_hand({"20": "Paris", "21": " is.", "22": "<|im_end|>"})
    records[0]["about"]["asked"] = {"r1": "Where?\u202e"}
    page = open_page(page_with(records))
    assert (
        text(page, "dialogue")
        == "r1 asked \u201cWhere?\u27e8U+202E\u27e9\u201d and got \u201cParis is.\u201d\nand 1 more request"
    )


def test_tables_stand_behind_every_picture(open_page):
    page = open_page(page_with(by_hand()))
    for name in ("timeline", "strip", "map"):
        page.click(f"details[data-table={name}] summary")
        page.locator(f"details[data-table={name}] tbody tr").nth(1).wait_for()  # fails where it never comes
    assert "120 ms" in page.inner_text("details[data-table=timeline]")


@pytest.mark.parametrize("width", [360, 700, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(open_page, width, theme):
    page = open_page(page_with(stored("blocks"), stored("one")), width, theme)
    page.evaluate("minifer.goTo(9)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    ink, paper = (page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{n}')")
                  for n in ("ink", "card"))  # fmt: skip
    assert contrast(ink.strip(), paper.strip()) > 7


def contrast(one, other):
    """WCAG's ratio of two colours `#rrggbb`."""

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_theme_can_be_switched_and_motion_is_reduced_where_asked(open_page):
    page = open_page(page_with(by_hand()), reduced_motion="reduce")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


# ---- what it withstands ----------------------------------------------------------------------------------------------

HOSTILE = {
    "1": "</script><script>document.title='owned'</script>",
    "2": "<img src=x onerror=\"document.title='owned'\">",
    "3": "<!--",
    "4": "a\u2028b",
    "5": "x\u202eexe\u2066",
    "6": "\x00\x07\x1b[31m",
    "20": "__proto__",
    "21": "\u200b",
    "22": "]]>{{7*7}}${alert(1)}",
    "23": "\ud800",
}


def test_no_text_of_a_token_becomes_anything_but_text(open_page):
    page = open_page(page_with(by_hand(HOSTILE)))
    for at in range(4):
        page.evaluate(f"minifer.goTo({at})")
    assert "\u27e8U+D800\u27e9" in text(page, "sentence")
    page.click("details[data-table=strip] summary")
    assert page.title() == "minifer x-ray: by hand"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    shown = page.locator(".chip .token").all_inner_texts()
    assert shown[0] == HOSTILE["1"]
    assert shown[3] == "a\u27e8U+2028\u27e9b"
    assert shown[4] == "x\u27e8U+202E\u27e9exe\u27e8U+2066\u27e9"
    assert shown[5] == "\u27e8U+0000\u27e9\u27e8U+0007\u27e9\u27e8U+001B\u27e9[31m"
    assert shown[7] == "\u27e8U+200B\u27e9"


def test_ids_of_requests_are_text_too(open_page):
    records = json.loads(json.dumps(by_hand()).replace('"r1"', '"<b>\\u202e"'))
    page = open_page(page_with(records))
    assert "<b>\u27e8U+202E\u27e9" in text(page, "sentence")
    assert page.locator("#sentence b").count() == 0


def test_a_thousand_requests(open_page):
    page = open_page(page_with(many(1000, 9, 50)))
    assert page.evaluate("minifer.state.runs[0].lives.length") == 1000
    page.evaluate("document.querySelector('#timeline').scrollTop = 15000")
    page.evaluate(FRAME)
    work = page.evaluate("minifer.work")
    assert 0 < work["rects"] < 2000
    assert page.evaluate("document.querySelector('#timeline canvas').height") < 1000


def test_two_thousand_steps_of_64_requests_cost_what_is_in_view(open_page):
    page = open_page(page_with(many(64, 1999, 64)))
    assert page.evaluate("minifer.state.runs[0].steps.length") == 2000
    nodes = page.evaluate("document.querySelectorAll('*').length")
    for at in (0, 700, 1400, 1999):
        page.evaluate(f"minifer.goTo({at})")
        page.evaluate(FRAME)
        work = page.evaluate("minifer.work")
        assert work["rects"] < 8000  # 64 rows of at most 400 bars, 20 rows of them in view
        assert work["chips"] <= 160
    assert page.evaluate("document.querySelectorAll('*').length") < nodes + 2000
    frames = page.evaluate("minifer.work.frames")
    page.evaluate("for (let i = 0; i < 50; i++) { minifer.goTo(i); }")
    page.evaluate(FRAME)
    assert page.evaluate("minifer.work.frames") - frames <= 6  # fifty steps between two frames are drawn once


def test_a_trace_without_steps_says_so(open_page):
    page = open_page(page_with(by_hand()[:1]))
    assert "holds no steps" in text(page, "facts")
