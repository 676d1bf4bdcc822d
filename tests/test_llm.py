"""The front door: text in, text out, on the bundled model. What tokens come is checked elsewhere; here, the seam."""

import itertools

import numpy as np
import pytest

import minifer
from minifer import LLM, SamplingParams
from minifer.errors import CapacityError, DeviceError, ModelNotFoundError, RequestError, UnsupportedError, UsageError

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny", room="reference", max_model_len=256) as llm:
        yield llm


def test_a_list_is_answered_in_order_and_as_each_alone(llm):
    prompts = ["Once upon a time", "The cat", "Tom went to the"]
    together = llm.generate(prompts, GREEDY)
    assert [o.prompt for o in together] == prompts
    for prompt, output in zip(prompts, together, strict=True):
        alone = llm.generate(prompt, GREEDY)[0]
        assert (alone.text, alone.token_ids) == (output.text, output.token_ids)
        assert output.finish_reason in ("stop", "length")


def test_streamed_text_is_the_whole_text(llm):
    chunks = list(llm.stream("The cat", GREEDY))
    whole = llm.generate("The cat", GREEDY)[0]
    assert "".join(c.text for c in chunks) == whole.text == chunks[-1].output.text
    assert [c.token_id for c in chunks] == whole.token_ids
    assert [c.finish_reason for c in chunks][:-1] == [None] * (len(chunks) - 1)


def test_token_ids_are_a_prompt_too(llm):
    ids = llm.tokenizer.encode("The cat")
    want = llm.generate("The cat", GREEDY)[0].token_ids
    assert llm.generate(ids, GREEDY)[0].token_ids == want
    assert llm.generate([ids, ids], GREEDY)[1].token_ids == want
    assert llm.generate([np.array(ids)], GREEDY)[0].token_ids == want


def test_a_stop_string_ends_the_text_before_it_and_frees_the_request(llm):
    text = llm.generate("Once upon a time", GREEDY)[0].text
    stop = text[5:9]  # cuts through tokens
    cut = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=12, stop=[stop]))[0]
    assert cut.text == text[: text.index(stop)]
    assert cut.finish_reason == "stop"
    assert not llm.engine.has_work


def test_eos_ends_the_answer_and_is_not_text(llm):
    (eos,) = {llm.generate("The cat", GREEDY)[0].token_ids[3]}
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[eos])
    output = llm.generate("The cat", params)[0]
    assert output.token_ids.index(eos) == len(output.token_ids) - 1
    assert output.text == llm.tokenizer.decode(output.token_ids[:-1])
    assert output.finish_reason == "stop"


def test_n_answers_each_equal_their_own_seed(llm):
    params = SamplingParams(n=3, seed=0, max_tokens=8)
    first, again = llm.generate(["The cat", "The cat"], params)
    texts = [o.text for o in first.outputs]
    assert texts == [o.text for o in again.outputs]
    assert len(set(texts)) > 1
    assert llm.generate("The cat", SamplingParams(seed=0, max_tokens=8))[0].text == texts[0]


def test_logprobs_beside_the_tokens(llm):
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2)
    output = llm.generate("The cat", params)[0].outputs[0]
    assert [t.token_id for t in output.logprobs] == output.token_ids
    assert all(t.top[0] == (t.token_id, t.logprob) and len(t.top) == 2 for t in output.logprobs)


def test_no_tokens_is_an_answer(llm):
    output = llm.generate("The cat", SamplingParams(max_tokens=0))[0]
    assert (output.text, output.token_ids, output.finish_reason) == ("", [], "length")


def test_none_means_as_much_as_there_is_room_for(llm):
    prompt = llm.tokenizer.encode("The cat")
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    assert len(llm.generate("The cat", params)[0].token_ids) == 256 - len(prompt)


def test_metrics_of_a_clock_that_is_given():
    class Ticking:
        """Every look at the clock takes a second."""

        def __init__(self):
            self.seconds = itertools.count()

        def now(self):
            return float(next(self.seconds))

    with LLM("tiny", room="reference", clock=Ticking()) as llm:
        metrics = llm.generate("The cat", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))[0].metrics
    assert metrics.output_tokens == 3
    assert metrics.ttft + sum(metrics.itl) == metrics.e2e
    assert metrics.queue_time + metrics.prefill_time + metrics.decode_time == metrics.e2e
    assert len(metrics.itl) == 2


def test_leaving_a_stream_early_leaves_nothing_behind(llm):
    free = llm.engine.scheduler.pool.num_free
    stream = llm.stream("Once upon a time", GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    assert llm.engine.scheduler.pool.num_free == free


def test_a_conversation(llm):
    output = llm.chat([{"role": "user", "content": "Hello"}], GREEDY)
    assert output.prompt_ids == llm.encode_chat([{"role": "user", "content": "Hello"}])
    assert output.text


def test_nan_weights_end_the_request_and_not_the_engine():
    with LLM("tiny", room="reference") as llm:
        good = llm.generate("The cat", GREEDY)[0].text
        llm.weights.final_norm.flags.writeable = True
        before, llm.weights.final_norm[0] = float(llm.weights.final_norm[0]), np.nan
        output = llm.generate("The dog", GREEDY)[0]
        assert output.finish_reason == "error"
        assert "logits" in output.outputs[0].error
        llm.weights.final_norm[0] = before
        assert llm.generate("The cat", GREEDY)[0].text == good


@pytest.mark.parametrize(
    ("prompt", "params", "error", "named"),
    [
        ("", GREEDY, RequestError, "empty"),
        ([[]], GREEDY, RequestError, "empty"),
        ([[1, 99_999]], GREEDY, RequestError, "99999"),
        ([[1, -1]], GREEDY, RequestError, "-1"),
        ([[1, 2.5]], GREEDY, RequestError, "2.5"),
        ("The cat", SamplingParams(max_tokens=257), CapacityError, "256"),
        ([[5] * 256], SamplingParams(max_tokens=1), CapacityError, "257"),
        (["a", "b"], [GREEDY], RequestError, "1 sampling"),
    ],
)
def test_bad_requests_are_refused_before_any_is_started(llm, prompt, params, error, named):
    with pytest.raises(error, match=named):
        llm.generate(prompt, params)
    assert not llm.engine.has_work


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"model": "no-such-model"}, ModelNotFoundError, "no-such-model"),
        ({"device": "tpu"}, UsageError, "tpu"),
        ({"device": "cuda:77"}, DeviceError, "CUDA"),
        ({"dtype": "int4"}, UnsupportedError, "int4"),
        ({"block_size": 0}, UsageError, "block_size"),
        ({"num_blocks": -1}, UsageError, "num_blocks"),
        ({"max_model_len": 5000}, UsageError, "1024"),
        ({"max_num_seqs": 0}, UsageError, "max_num_seqs"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, UsageError, "64"),
        ({"room": "attic"}, UsageError, "attic"),
    ],
)
def test_bad_options_are_refused_by_name(options, error, named):
    with pytest.raises(error, match=named):
        LLM(**{"model": "tiny", "room": "reference", **options})


def test_a_model_without_a_vocabulary_takes_ids_only():
    with LLM("random:tiny", room="reference", max_model_len=64) as llm:
        assert len(llm.generate([[1, 2, 3]], GREEDY)[0].token_ids) > 0
        with pytest.raises(RequestError, match="vocabulary"):
            llm.generate("text")


def test_the_package_offers_what_it_names():
    assert all(getattr(minifer, name) for name in minifer.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = minifer.nothing_like_it
