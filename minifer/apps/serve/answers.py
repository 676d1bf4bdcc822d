"""Jobs under way, as a request handler sees them: something to wait for, that gives pieces of text.

One HTTP request may hold several prompts, each of them a job with n answers; a `Group` waits for all of them at once. A
handler that streams takes pieces as they come, one that doesn't waits for the last. The difference matters when a
replica dies: as long as nothing was passed on, a job can be done again elsewhere and nobody is the wiser. So a job
counts as *sealed* from the moment a streaming handler has taken its first piece.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from minifer.apps.serve.messages import Job, Piece


class Stream:
    """The pieces of one job. Everything here happens in the event loop."""

    def __init__(self, job: Job, news: asyncio.Event) -> None:
        """Nothing has come yet. `news` is set whenever something does."""
        self.job, self.news = job, news
        self.replica: int | None = None  # None while no replica is alive
        self.pieces: list[Piece] = []
        self.open: set[int] = set(range(job.params.n))  # answers that have not ended
        self.sealed = False  # something was passed on: can't be done again
        self.gone = False  # nobody waits for it any more
        self.tries = 1
        self.reason = ""  # the router's
        self.last_token: dict[int, float] = {}  # answer -> time, for the gaps between tokens

    def push(self, piece: Piece) -> None:
        """A piece has come."""
        if piece.finish_reason is not None:
            self.open.discard(piece.answer)
        if not self.gone:
            self.pieces.append(piece)
            self.news.set()

    def again(self) -> None:
        """Forget what has come: the job starts from the beginning on another replica."""
        self.pieces.clear()
        self.last_token.clear()
        self.open = set(range(self.job.params.n))
        self.tries += 1


class Group:
    """The jobs of one HTTP request. Leaving it drops those that are not finished."""

    def __init__(self, jobs: Sequence[Job], submit: Callable[[Stream], None], drop: Callable[[Stream], None]) -> None:
        """Submit all jobs."""
        self._news, self._drop = asyncio.Event(), drop
        self.streams = [Stream(job, self._news) for job in jobs]
        for stream in self.streams:
            submit(stream)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            self._drop(stream)

    async def batches(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """`(index of the job, piece)`, as many at a time as there are, until every answer has ended."""
        over = False
        while not over:
            await self._news.wait()
            self._news.clear()
            over = not any(stream.open for stream in self.streams)
            batch = [(i, piece) for i, stream in enumerate(self.streams) for piece in stream.pieces]
            for stream in self.streams:
                stream.sealed = stream.sealed or bool(stream.pieces)
                stream.pieces = []
            if batch:
                yield batch

    async def whole(self) -> list[list[Piece]]:
        """All pieces of each job, once every answer has ended."""
        while any(stream.open for stream in self.streams):
            await self._news.wait()
            self._news.clear()
        found = [stream.pieces for stream in self.streams]
        for stream in self.streams:
            stream.pieces = []
        return found
