"""Phase 04: stop strings in streamed text, wherever the tokens happen to cut it."""

from hypothesis import given
from hypothesis import strategies as st

from minifer.stop_strings import StopStrings


def run(stop, pieces):
    watch = StopStrings(stop)
    shown = []
    for piece in pieces:
        shown.append(watch.push(piece))
        if watch.stopped is not None:
            return "".join(shown), watch.stopped
    return "".join(shown) + watch.finish(), None


def test_across_tokens():
    assert run(["END"], ["one E", "N", "D two"]) == ("one ", "END")


def test_a_false_start_is_given_back():
    assert run(["END"], ["E", "E", "N", "O"]) == ("EENO", None)
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")


def test_held_back_text_is_shown_at_the_end():
    assert run(["\n\n"], ["a", "\n"]) == ("a\n", None)


def test_the_earliest_wins():
    assert run(["wood", "green"], ["a greenwood"]) == ("a ", "green")


def test_text_is_shown_as_soon_as_it_is_safe():
    watch = StopStrings(["END"])
    assert [watch.push(c) for c in "aEb"] == ["a", "", "Eb"]


def test_nothing_after_the_stop():
    watch = StopStrings(["x"])
    assert (watch.push("axb"), watch.push("c"), watch.finish()) == ("a", "", "")


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_any_cut_gives_the_same_text(text, stop, data):
    """Streamed in any pieces: the text before the stop string that is complete first."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    by_letters = run(stop, list(text))
    shown, stopped = run(stop, pieces)
    ends = [text.index(s) + len(s) for s in stop if s in text]
    if not ends:
        assert (shown, stopped) == (text, None) == by_letters
    else:
        assert stopped in stop
        assert text.startswith(shown + stopped)
        assert by_letters[1] is not None
        assert len(by_letters[0]) + len(by_letters[1]) == min(ends)
