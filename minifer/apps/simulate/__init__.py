"""A fleet on a virtual clock: minifer's own scheduler, pool, prefix cache and router, with the model left out.

    arrivals -> router -> replica 0: scheduler -> plan -> how long would this step take?  -> commit
                          replica 1: ...

Every decision is taken by the code that the engine runs; only `Executor.run` is replaced, by a formula that says how
long the step would take. What is not simulated: tokenization, HTTP, the Python between steps where it was not measured
as part of a step, and a machine's other tenants.
"""
