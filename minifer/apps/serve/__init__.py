"""The server: HTTP in, tokens out, and everything in between that is not inference.

    router.py      which replica a request goes to, and why                       (pure)
    replica.py     one engine in a process of its own: commands in, tokens out
    worker.py      what runs inside that process
    fleet.py       the replicas together: started, watched, restarted, asked
    protocol.py    JSON from strangers, checked before anything believes it
    openai.py  ollama.py  llama_server.py    three languages for the same thing
    app.py         the routes, and what every request passes first: limits, keys, CORS, log
    vllm_metrics.py      /metrics with vLLM's names

An engine computes in steps of many milliseconds and holds Python's lock while it does, so it must never share a process
with the event loop that answers a hundred connections. That is why replicas are processes even on one CPU.
"""
