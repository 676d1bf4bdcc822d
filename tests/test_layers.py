"""Nothing imports upwards: the layer list of `house.py` against the imports that are really there."""

import subprocess
import sys

import house
import pytest

FRONT_DOOR = ("minifer", "minifer.__main__")
RANK = {name: rank for rank, layer in enumerate(house.LAYERS) for name in layer}


def layer_of(module: str) -> str:
    """`minifer.ops.cpu` lies in `ops`."""
    return module.split(".")[1]


LAYERED = [f for f in house.module_files(".", without=("data",)) if house.module_name(f) not in FRONT_DOOR]
NOT_THE_DOOR_TO_ROOMS = [
    f for f in house.core_files() if house.module_name(f) not in ("minifer.ops", *house.FAST_ROOMS)
]


@pytest.mark.parametrize("path", LAYERED, ids=house.module_name)
def test_imports_point_down(path):
    """Each import of our own goes to the same layer or a lower one; the package itself exports from anywhere."""
    name = house.module_name(path)
    mine = RANK[layer_of(name)]
    ours = [(line, module) for line, module in house.imports_of(path) if module.startswith("minifer.")]
    upwards = [f"line {line}: {module}" for line, module in ours if RANK[layer_of(module)] > mine]
    assert not upwards, f"{name} imports upwards: {upwards}"


@pytest.mark.parametrize("path", NOT_THE_DOOR_TO_ROOMS, ids=house.module_name)
def test_fast_rooms_load_on_demand(path):
    """The tuned rooms can be deleted, because only `ops/__init__.py` knows them."""
    assert not [m for _, m in house.imports_of(path) if m in house.FAST_ROOMS]


@pytest.mark.parametrize("path", house.module_files(*house.PURE_PYTHON), ids=house.module_name)
def test_deciders_do_not_compute(path):
    """The scheduler and the bookkeeping import no array library."""
    assert not [m for _, m in house.imports_of(path) if m.split(".")[0] in ("numpy", "cupy")]


def test_every_module_has_a_layer():
    """A new module at the top of the package must be given its place in the list."""
    tops = {p.stem for p in house.PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert tops - {"__init__", "__main__"} <= set(RANK)


def test_an_upward_import_is_found(tmp_path, monkeypatch):
    """The check itself: relative, lazy and aliased imports are all seen."""
    (tmp_path / "minifer" / "ops").mkdir(parents=True)
    (tmp_path / "minifer" / "__init__.py").touch()
    (tmp_path / "minifer" / "engine.py").touch()
    bad = tmp_path / "minifer" / "ops" / "__init__.py"
    bad.write_text(
        "from .. import engine\nfrom ..engine import x\ndef f():\n    import minifer.engine\nL = 'minifer.engine'\n"
    )
    monkeypatch.setattr(house, "ROOT", tmp_path)
    assert sorted(house.imports_of(bad)) == [(line, "minifer.engine") for line in (1, 2, 4, 5)]


def test_import_minifer_is_light():
    """`import minifer` must be quick, so it brings in neither NumPy nor anything drawn."""
    code = "import sys, minifer; print(sorted({'numpy', 'matplotlib', 'rich', 'gguf', 'regex'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=house.ROOT, check=True)
    assert result.stdout.strip() == "[]"
