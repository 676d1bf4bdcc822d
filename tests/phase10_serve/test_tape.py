"""The last records of a trace: bounded in number and in size, and nobody who looks can hold anything up."""

from hypothesis import given
from hypothesis import strategies as st

from minifer.apps.serve import tape as module
from minifer.apps.serve.tape import Looker, Tape

HEADER = '{"kind":"header","minifer_trace":1}\n'


class File:
    """A file that remembers."""

    def __init__(self):
        self.text, self.closed = "", False

    def write(self, text):
        self.text += text

    def close(self):
        self.closed = True


@given(st.lists(st.lists(st.integers(1, 50), max_size=8), max_size=20))
def test_the_ring_holds_the_newest_that_fit(batches):
    tape, everything = Tape(1, ring=5), []
    before, module.RING_BYTES = module.RING_BYTES, 100
    try:
        tape.take(0, [HEADER])
        for sizes in batches:
            lines = ["x" * size for size in sizes]
            everything += lines
            tape.take(0, lines) if lines else None
    finally:
        module.RING_BYTES = before
    kept = list(tape.rings[0])
    assert kept == everything[len(everything) - len(kept) :]
    assert len(kept) <= 5
    assert sum(map(len, kept)) == tape.sizes[0] <= 100
    assert tape.headers[0] == HEADER


def test_a_slow_looker_loses_and_is_told():
    looker = Looker([])
    looker.push(["a"] * (module.BACKLOG + 7))
    assert looker.lost == 7
    assert looker.taken() == ["a"] * module.BACKLOG
    looker.push(["b" * module.BACKLOG_BYTES, "c"])
    assert (looker.lost, len(looker.taken())) == (8, 1)


def test_a_file_has_one_header_though_a_replica_was_restarted():
    file = File()
    tape = Tape(1, [file])
    for lines in ([HEADER, "1\n"], ["2\n"], [HEADER], ["3\n"]):
        tape.take(0, lines)
    tape.close()
    assert file.text == HEADER + "1\n2\n3\n"
    assert file.closed
