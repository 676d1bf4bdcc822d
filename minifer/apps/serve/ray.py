"""The same server as a Ray Serve application: for more than one machine, or for as many replicas as there is work.

    Ray's HTTP proxy -> Ingress (service.py, app.py) -> PrefixRouter -> Engine, Engine, ...

    minifer serve MODEL --ray --replicas 2..8                                       # starts Ray on this machine
    serve run minifer.apps.serve.ray:app model=smollm2-135m replicas=2..8           # Ray's own command does the same

A cluster is joined with Ray's command, on every machine with the same Python, the same Ray and minifer installed:

    ray start --head --port 6379                      on the first; further ones: ray start --address FIRST:6379
    minifer serve MODEL --ray --address auto --host 0.0.0.0 --api-key-file key.txt         on the first

Each machine loads the model by the name given, so a path has to be there everywhere. What `fleet.py` does for
processes, Ray does for actors: it starts them, watches them, puts new ones in the place of the dead, and adds some
while each has more than `busy` unfinished requests. An actor holds one engine, in a thread; the `Fleet` around it has
one replica. The `Fleet` in front, `Actors`, keeps the promise of `fleet.py`: a request of which nothing was passed on
is done again, another one ends with an error. Clocks of two machines can't be compared, so an engine counts from the
moment that it gets a request, and the times of tokens in /metrics are those of their arrival in front.

What this file does not do: no trace, so no live page; `iteration_tokens_total` stays at 0; one `Ingress`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, cast

from ray import serve
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from minifer.apps.serve.answers import Stream
from minifer.apps.serve.app import build
from minifer.apps.serve.fleet import Fleet, _counters
from minifer.apps.serve.messages import Job, Load, Piece, Ready
from minifer.apps.serve.ray_command import span
from minifer.apps.serve.replica import Replica
from minifer.apps.serve.router import Router
from minifer.apps.serve.service import Service, Settings
from minifer.errors import DeviceError, UsageError

LOOK_S = 1.0
"""How often the front asks all actors for their load."""

UNLIMITED = 1 << 20
"""Requests that an actor takes: the queue is the engine's own, and the limit stands in front (`max_queue`)."""


class Places:
    """Small numbers for replicas that come and go under long names.

    >>> places = Places(2)
    >>> places.update(["a", "b"]), places.update(["b", "c"]), places.of
    ([], [0], {'b': 1, 'c': 0})
    """

    def __init__(self, most: int) -> None:
        self.of: dict[str, int] = {}
        self._free = list(range(most))

    def update(self, present: Iterable[str]) -> list[int]:
        """Take back the numbers of those that are gone, and return them; whoever is new gets one if there is one."""
        names = list(present)
        gone = [self.of.pop(name) for name in list(self.of) if name not in names]
        self._free = sorted(self._free + gone)
        for name in names:
            if name not in self.of and self._free:
                self.of[name] = self._free.pop(0)
        return gone


class PrefixRouter(RequestRouter):
    """minifer's `Router`, asked by Ray. It lives in the process of the `Ingress`."""

    def initialize_state(self, policy: str, most: int, block_size: int) -> None:
        """Room for twice as many replicas: one that goes may still be there when the next one comes."""
        self.places = Places(2 * most)
        self.minifer = Router(policy, 2 * most, block_size=block_size)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Ray tells which replicas there are. The cache of one that is gone is gone."""
        for place in self.places.update(replica.replica_id.to_full_id_str() for replica in replicas):
            self.minifer.forget(place)
        super().update_replicas(replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The one for this prompt first, then the others, for the case that it can't be reached."""
        at = {self.places.of.get(replica.replica_id.to_full_id_str()): replica for replica in candidate_replicas}
        at.pop(None, None)
        job = next((a for a in pending_request.args if isinstance(a, Job)), None) if pending_request else None
        if job is None or not at:
            return [list(candidate_replicas)]
        seats = range(self.minifer.num_replicas)
        load = [self.replica_queue_len_cache.get(at[i].replica_id) or 0 if i in at else 0 for i in seats]
        chosen = at[self.minifer.choose(job.prompt_ids, load, [i in at for i in seats]).replica]
        return [[chosen], [replica for replica in candidate_replicas if replica is not chosen]]


@serve.deployment(max_ongoing_requests=UNLIMITED)
class Engine:
    """An actor with an engine."""

    async def __init__(self, model: str, options: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        self.tag = serve.get_replica_context().replica_tag
        replica = Replica(0, model, options, about={"replica": self.tag}, in_thread=True)
        self.fleet = Fleet([replica], max_queue=UNLIMITED)
        self.ready = await self.fleet.start()

    async def describe(self) -> Ready:
        """What the front wants to know of the model."""
        return self.ready

    async def load(self) -> tuple[str, Load]:
        """Its name, and what it has to do."""
        return self.tag, self.fleet.seats[0].load

    async def answer(self, job: Job) -> AsyncIterator[list[Piece]]:
        """Do a job. Whoever stops listening ends it."""
        with self.fleet.ask([job._replace(arrival=time.perf_counter())]) as group:
            async for batch in group.batches():
                yield [piece for _, piece in batch]

    def check_health(self) -> None:
        """Ray asks now and then; an engine that has died and not come back is no reason to keep its actor."""
        if not self.fleet.num_alive:
            raise DeviceError(f"the engine has died: {self.fleet.seats[0].error or 'its thread has ended'}")


class Place(Replica):
    """A seat in `Actors`. Ray starts, watches and ends the actor that sits there."""

    def __init__(self, index: int) -> None:
        super().__init__(index, "", {}, about={})


class Actors(Fleet):
    """A fleet whose replicas are actors. They are chosen and restarted by Ray; their requests are followed here."""

    def __init__(self, engines: Any, most: int, route: str, max_queue: int) -> None:
        """`engines` is the handle of the deployment."""
        super().__init__([Place(i) for i in range(most)], route=route, max_queue=max_queue)
        self.engines, self.places = engines, Places(most)
        self._followers: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> Ready:
        """Wait for the first actor."""
        self.ready = await self.engines.describe.remote()
        self._spawn(self._watch())
        return self.ready

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # an actor that dies while it is asked: the next look is soon
                loads = await asyncio.wait_for(self.engines.broadcast("load").results_async(), 10 * LOOK_S)
                self.looked(loads)
            await asyncio.sleep(LOOK_S)

    def looked(self, loads: Sequence[tuple[str, Load]]) -> None:
        """These actors are there, with so much to do."""
        for index in self.places.update(tag for tag, _ in loads):
            seat = self.seats[index]
            seat.before.update(_counters(seat.load))
            seat.load, seat.alive = Load(), False
        for tag, load in loads:
            if tag in self.places.of:
                seat = self.seats[self.places.of[tag]]
                self.restarts += bool(not seat.alive and seat.since)
                seat.load, seat.alive, seat.since = load, True, time.monotonic()

    def _place(self, stream: Stream) -> None:
        self._followers[stream.job.id] = asyncio.get_running_loop().create_task(self._follow(stream))

    async def _follow(self, stream: Stream) -> None:
        """Take what an actor brings until the job has ended, or has to be done again."""
        answer: Any = None
        try:
            answer = self.engines.options(stream=True).answer.remote(stream.job)
            async for pieces in answer:
                for piece in pieces:
                    mine = piece._replace(time=time.perf_counter())
                    self.gauges.piece(stream, mine)
                    stream.push(mine)
        except Exception:  # Ray has many names for an actor that is gone
            self._rescue(stream)
        else:
            self._forget(stream) if not stream.open else self._rescue(stream)
        finally:
            if answer is not None:
                answer.cancel()

    def _forget(self, stream: Stream) -> None:
        super()._forget(stream)
        follower = self._followers.pop(stream.job.id, None)
        if follower is not None and follower is not asyncio.current_task():
            follower.cancel()


@serve.deployment(max_ongoing_requests=UNLIMITED, ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Ingress:
    """The HTTP API in front of the engines."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, engines: Any, settings: Settings, most: int, route: str, max_queue: int
    ) -> None:
        self.service = Service(Actors(engines, most, route, max_queue), settings)
        await self.service.start()

    def __serve_build_asgi_app__(self) -> Any:
        """The routes; Ray asks for them once the constructor is through."""
        return build(self.service)


def application(
    model: str,
    settings: Settings,
    *,
    replicas: str | int = 1,
    route: str = "prefix-affinity",
    max_queue: int = 512,
    engine: Mapping[str, Any] | None = None,
    actor: Mapping[str, Any] | None = None,
    patience_s: float = 10.0,
) -> Any:
    """The application: `engine` are options of `LLM`, `actor` what Ray reserves for each of them (num_cpus, num_gpus).

    Among `least..most` replicas Ray looks for the number that leaves each with `max_num_seqs` unfinished requests, a
    full batch. One that is to go has `patience_s` to finish what it has.
    """
    (least, most), options = span(replicas), dict(engine or {})
    scaling = {
        "min_replicas": least,
        "max_replicas": most,
        "target_ongoing_requests": options.get("max_num_seqs", 8),
        "upscale_delay_s": 5.0,
        "downscale_delay_s": 60.0,
        "look_back_period_s": 12.0,  # has to be more than the 10 s between two reports
    }
    routing = {"policy": route, "most": most, "block_size": options.get("block_size", 16)}
    engine_actors, ingress = cast(Any, Engine), cast(Any, Ingress)  # the decorator made deployments of the classes
    engines = engine_actors.options(
        **({"autoscaling_config": scaling} if least < most else {"num_replicas": least}),
        request_router_config={"request_router_class": PrefixRouter, "request_router_kwargs": routing},
        ray_actor_options=dict(actor or {"num_cpus": 1}),
        graceful_shutdown_timeout_s=patience_s,
        max_constructor_retry_count=1,
    ).bind(model, options)
    return ingress.options(graceful_shutdown_timeout_s=patience_s).bind(engines, settings, most, route, max_queue)


def app(arguments: Mapping[str, str]) -> Any:
    """For `serve run minifer.apps.serve.ray:app model=NAME replicas=2..8`; any other argument is an option of `LLM`."""
    options = dict(arguments)
    if "model" not in options:
        raise UsageError("there is no model: serve run minifer.apps.serve.ray:app model=smollm2-135m replicas=2..8")
    model, replicas = options.pop("model"), options.pop("replicas", "1")
    engine = {name: int(value) if value.isdigit() else value for name, value in options.items()}
    return application(model, Settings(model, live=False), replicas=replicas, engine=engine)
