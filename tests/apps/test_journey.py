"""The numbers of `minifer demo`, from a journey whose every figure can be worked out by hand."""

import json
from dataclasses import replace

import pytest

from minifer.apps.journey import Journey, heading
from minifer.apps.journey_figure import draw
from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, Work, num_parameters, step_cost
from minifer.roofline.probes import Ceilings

CONFIG = ModelConfig(
    vocab_size=100,
    hidden_size=36,
    intermediate_size=50,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    tie_word_embeddings=True,
)
CEILINGS = Ceilings(read_bytes_per_s=1e9, flops_per_s=4e9, working_set_bytes=1 << 20)


@pytest.fixture
def journey():
    """9 prompt tokens; sent at 0, scheduled at 10 ms, tokens at 50, 80, 120 and 130 ms."""
    return Journey(
        model="toy",
        config=CONFIG,
        question="What now?",
        answer="This.",
        answer_pieces=("Th", "is", ".", ""),
        pieces=("What", " now", "?\n"),
        prompt_tokens=9,
        tokenize_s=0.004,
        scheduled_s=0.010,
        token_times_s=(0.050, 0.080, 0.120, 0.130),
        finish_reason="stop",
        ceilings=CEILINGS,
        ceilings_after=Ceilings(0.95e9, 4e9, 1 << 20),
        conditions={"cpu": "a toy", "threads": 1, "minifer": "0", "numpy": "2"},
    )


def total(*work):
    """Predicted cost of one step."""
    return sum(step_cost(CONFIG, work).values(), Cost())


def test_ttft_and_itl_come_from_the_stamps(journey):
    """TTFT runs from sending, tokenization and queue included; the first gap belongs to ITL."""
    assert journey.ttft_s == 0.050
    assert journey.gaps_s == pytest.approx([0.030, 0.040, 0.010])


def test_kv_cache(journey):
    """K and V, 3 layers, 2 kv heads of 10, float32; the last token of the answer never enters it."""
    assert journey.kv_bytes_per_token == 2 * 3 * 2 * 10 * 4
    assert journey.kv_tokens == 9 + 3


def test_phases_cover_the_steps(journey):
    """Prefill is one step of 9 tokens, decode three steps of one token on a growing context."""
    prefill, decode = journey.prefill, journey.decode
    assert prefill.cost == total(Work(9, 9))
    assert (prefill.tokens, prefill.seconds) == (9, pytest.approx(0.040))
    assert decode.cost == total(Work(1, 10)) + total(Work(1, 11)) + total(Work(1, 12))
    assert (decode.tokens, decode.seconds) == (3, pytest.approx(0.080))


def test_a_prefix_hit_is_not_counted_as_work(journey):
    """Tokens found in the cache are read, not computed."""
    hit = replace(journey, num_cached=8)
    assert hit.prefill.cost == total(Work(1, 9))
    assert hit.prefill.tokens == 1


def test_share_is_least_time_over_time(journey):
    """The slower of reading and arithmetic, over what it took."""
    for phase in (journey.prefill, journey.decode):
        least = max(phase.cost.flops / 4e9, phase.cost.bytes / 1e9)
        assert phase.share == pytest.approx(least / phase.seconds)
    assert journey.decode.limiter == "reading"


@pytest.mark.parametrize(("speed", "regime"), [(1.0, "reading"), (0.51, "reading"), (0.49, "overhead")])
def test_regimes(journey, speed, regime):
    """Below half of the ceiling, neither reading nor arithmetic explains the time."""
    least = CEILINGS.least_seconds(journey.decode.cost.flops, journey.decode.cost.bytes)
    decode = replace(journey.decode, seconds=least / speed)
    assert decode.regime == regime
    assert decode.regime_in_words().startswith("decode is limited by")


def test_arithmetic_is_a_regime_too(journey):
    """With a slow multiplier the same prefill meets the other ceiling."""
    slow = replace(CEILINGS, flops_per_s=1e7)
    prefill = replace(journey.prefill, ceilings=slow, seconds=journey.prefill.cost.flops / 1e7 / 0.8)
    assert (prefill.limiter, prefill.regime) == ("arithmetic", "arithmetic")
    assert prefill.share == pytest.approx(0.8)
    assert prefill.speed_in_words() == "0.008 of 0.01 GFLOP/s"


def test_a_busy_machine_is_called_so(journey):
    """5 % of drift is silent, 11 % is not."""
    assert not [line for line in journey.lines() if "not quiet" in line]
    busy = replace(journey, ceilings_after=Ceilings(1e9, 3.56e9, 1 << 20))
    assert busy.drift == pytest.approx(-0.11)
    assert "Machine not quiet: a ceiling moved by -11%" in busy.remarks()[0]


@pytest.mark.parametrize(("others", "warned"), [(0.25, False), (0.26, True), (None, False)])
def test_company_is_mentioned(journey, others, warned):
    """Other programs had more than a quarter of the cores; some systems do not tell."""
    loaded = replace(journey, conditions={"others_busy": others})
    assert any("kept 26% of it busy" in line for line in loaded.lines()) is warned


def test_an_answer_of_one_token_has_no_decode(journey):
    """Nothing is divided by zero."""
    short = replace(journey, token_times_s=(0.050,))
    assert short.decode is None
    assert short.gaps_s == []
    assert not [line for line in short.lines() if line.startswith(("decode", "ITL"))]
    assert "decode" not in short.as_dict()


def test_lines_name_every_station(journey):
    """In the order of the journey; boundaries are visible, and a line break is spelled out."""
    lines = journey.lines()
    names = ["text", "tokens", "prefill", "KV cache", "decode", "TTFT", "ITL"]
    assert [line[:9].strip() for line in lines[1:8]] == names
    assert "What| now|?\\n" in lines[2]
    assert len(lines) <= 11
    assert f"{num_parameters(CONFIG) / 1e6:.1f} million" in heading("toy", CONFIG, CEILINGS)


def test_json_round_trip(journey):
    """Everything is plain data."""
    data = json.loads(json.dumps(journey.as_dict()))
    assert data["tokens"] == {"prompt": 9, "cached": 0, "output": 4}
    assert data["itl_s"] == pytest.approx([0.030, 0.040, 0.010])
    assert data["prefill"]["limiter"] == journey.prefill.limiter


@pytest.mark.parametrize("tokens", [1, 2, 4, 40])
def test_figure_is_drawn_for_any_length(journey, tmp_path, tokens):
    """One token, two, a few, more than can be labelled; a dollar sign is no formula."""
    times = tuple(0.05 + 0.03 * i for i in range(tokens))
    odd = replace(journey, token_times_s=times, answer_pieces=("$x_$",) * tokens, answer="$x_$ " * tokens)
    path = draw(odd, tmp_path / "figure.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
