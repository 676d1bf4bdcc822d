"""Recorded traffic: three columns, and what is refused."""

import pytest

from minifer.apps.simulate.azure import azure_arrivals
from minifer.errors import FormatError, UsageError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = [
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:50.9951690,1,1",
    "2023-11-16 18:16:46,7,3",
]


@pytest.fixture
def write(tmp_path):
    def put(*rows, header=HEADER):
        path = tmp_path / "traffic.csv"
        path.write_text(header + "\n".join(rows) + "\n", "utf-8")
        return path

    return put


def test_rows_become_arrivals(write):
    arrivals = list(azure_arrivals(write(*ROWS)))
    assert [(a.index, len(a.prompt_ids), a.output_len) for a in arrivals] == [
        (0, 374, 44),
        (1, 396, 109),
        (2, 1, 1),
        (3, 7, 3),
    ]
    assert [a.at for a in arrivals] == pytest.approx([0.0, 4.314579, 4.314579, 59.31941])
    assert len({a.prompt_ids[0] for a in arrivals}) == 4  # no prompt begins as another


def test_a_scaled_window(write):
    arrivals = list(azure_arrivals(write(*ROWS), rate_scale=2.0, limit=2, skip=1))
    assert [(a.index, len(a.prompt_ids)) for a in arrivals] == [(0, 396), (1, 1)]
    assert azure_scaled(write, 2.0) == pytest.approx(59.31941 / 2)


def azure_scaled(write, scale):
    return list(azure_arrivals(write(*ROWS), rate_scale=scale))[-1].at


def test_columns_may_stand_in_any_order_behind_a_byte_order_mark(write):
    path = write("9,x,8,2023-11-16 18:15:46.1", header="\ufeffGeneratedTokens,Other,ContextTokens,TIMESTAMP\n")
    (arrival,) = azure_arrivals(path)
    assert (len(arrival.prompt_ids), arrival.output_len) == (8, 9)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["2023-11-16 18:15:46,1,2", "2023-11-16 18:15:45.5,1,2"], "line 3: time runs backwards, by 0.500 s"),
        (["2023-11-16 18:15:46,1.5,2"], "line 2: '1.5' is not a whole number"),
        (["2023-11-16 18:15:46,,2"], "line 2: '' is not a whole number"),
        (["2023-11-16 18:15:46,5,0"], "line 2: 0 tokens are not between"),
        (["2023-11-16 18:15:46,5,99999999999"], "line 2: 99999999999 tokens"),
        (["yesterday,5,5"], "line 2: 'yesterday' is not a time"),
        (["2023-11-16 18:15:46"], "line 2: None is not a whole number|line 2: '' is not"),
    ],
)
def test_bad_rows_are_named_before_anything_runs(write, rows, words):
    with pytest.raises(FormatError, match=words):
        azure_arrivals(write(*rows))


def test_missing_columns_are_named(write):
    with pytest.raises(FormatError, match="lacks the columns ContextTokens, GeneratedTokens; its first line says"):
        azure_arrivals(write("1,2", header="TIMESTAMP,tokens\n"))


@pytest.mark.parametrize("options", [{"rate_scale": 0}, {"rate_scale": float("nan")}, {"limit": 0}, {"skip": -1}])
def test_bad_options_are_refused(write, options):
    with pytest.raises(UsageError):
        azure_arrivals(write(*ROWS), **options)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00rubbish")
    with pytest.raises(FormatError):
        azure_arrivals(tmp_path / "a.csv")
    with pytest.raises(UsageError, match="there is no file"):
        azure_arrivals(tmp_path / "b.csv")
