"""The examples in the documentation of the load generator are true."""

import doctest
import importlib

import pytest

MODULES = ("workloads", "serve_results", "compare_same", "compare_page", "loadgen.wire", "loadgen.protocols",
           "loadgen.live", "loadgen.point", "view.serving_figures")  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    found = doctest.testmod(importlib.import_module(f"minifer.apps.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0
    assert found.attempted > 0
