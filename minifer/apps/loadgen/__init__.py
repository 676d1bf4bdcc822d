"""A load generator that measures right: who sends what when, and what came back at which moment.

    wire.py        one HTTP request; the clock is read when bytes arrive, before anything looks at them
    protocols.py   what OpenAI's and Ollama's servers are asked, and what their events mean
    record.py      everything a client knows about one request, and its latencies on two clocks
    run.py         requests sent at absolute times, answers collected, Ctrl-C survived
    client.py      the three together, against a URL
    local.py       the same schedule for an engine in this process, with no HTTP between

Load generators disagree about simple words, mostly because of five mistakes that are avoided here:

* an event without text (a role, a keep-alive, the usage) is taken for a token;
* events are counted as tokens, though one may carry several, or half of one;
* the next request is sent a gap after the last was *sent*, so every delay of the client lowers the rate for good;
* a client that waits for a free slot starts its clock only then, and the waiting vanishes ("coordinated omission");
* what failed takes part in the averages, often with a time of zero.

The same words mean different things elsewhere; names here are vLLM's:

    here            elsewhere
    TPOT            AIPerf's and GuideLLM's "ITL"; GuideLLM's own TPOT has the first token in it
    ITL of events   vLLM's ITL; AIPerf's "inter-chunk latency"
    TPOT            llama-server divides by n - 1 as we do, Ollama by n
    TTFT            vLLM's chat client stops the clock at an event that has a role and no text
"""
