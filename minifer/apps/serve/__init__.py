"""The server: HTTP in, tokens out, and everything in between that is not inference.

    router.py          which replica a request goes to, and why                        (pure)
    messages.py        what passes between the server and a replica
    worker.py          what runs inside a replica's process; scoring.py: prompts with log-probabilities
    replica.py         one such process as the server sees it
    fleet.py           the replicas together: started, watched, restarted, asked; answers.py: what is under way
    service.py         from a prompt to ids to a job
    protocol.py        JSON from strangers, checked before anything believes it
    openai.py  ollama.py  llama_server.py      three languages for the same thing
    reply.py           from a handler to bytes, and what happens if the client leaves
    front.py           what every request passes first: log, CORS, Host, Origin, key
    app.py             the routes; openapi.py describes them
    server.py          uvicorn around it all, with patience and a deadline
    ray.py             the same as a Ray Serve application; ray_command.py starts it, watches it, ends it
    vllm_metrics.py    /metrics; tape.py and live.py: the trace while it grows

An engine computes in steps of many milliseconds and holds Python's lock while it does, so it must never share a process
with the event loop that answers a hundred connections. That is why replicas are processes even on one CPU.
"""
