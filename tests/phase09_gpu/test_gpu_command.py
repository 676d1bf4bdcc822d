"""Phase 09: the device on the command line: one line of answer, or one line of error."""

import pytest

from minifer.apps import cli
from tests.gpu_rooms import needs_compiler

RUN = ["run", "tiny", "Once upon", "--max-tokens", "3", "--num-blocks", "8"]


@needs_compiler
def test_the_stand_in_answers_like_the_cpu(capsys):
    """In float32 from a graph, kernel by kernel, and on the CPU: the same words."""
    ways = (["--device", "cpu"], ["--device", "strict", "--dtype", "float32"], ["--device", "strict", "--no-graph"])
    said = []
    for way in ways:
        assert cli.main([*RUN, *way]) == 0
        said.append(capsys.readouterr().out)
    assert said[0].strip()
    assert said[1:] == said[:1] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cpu", "--no-graph"], "--no-graph is about CUDA graphs, and this runs on the CPU"),
        (["--device", "cpu", "--dtype", "bfloat16"], "dtype 'bfloat16' is not supported by the room 'cpu'"),
        (["--device", "tpu"], "unknown device 'tpu': use auto, cpu, cuda, cuda:N or strict"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys, options, message):
    assert cli.main([*RUN, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
