"""The house rules that a reader relies on: import directions, file triples, sizes, names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "model": {"model"},
    "rtl": {"rtl"},
    "boards": {"boards", "rtl"},
    "sim": {"sim", "rtl", "model"},
    "host": {"host", "sim", "boards", "rtl", "model"},
}
LEAVES = (
    "activation_tables",
    "errors",
    "formats",
    "geometry",
    "graph",
    "hyper",
    "join_depths",
    "kinds",
    "layer_json",
    "layer_parts",
    "layer_checks",
    "layer_plan",
    "loss_options",
    "pace",
    "padding",
    "plan",
    "pooling",
    "random",
    "registers",
    "relay",
    "schedule",
    "step",
    "tables",
    "timing",
)
LAYERS = (
    "activation",
    "add",
    "affine",
    "avgpool",
    "binary_cross_entropy",
    "concat",
    "conv",
    "cross_entropy",
    "dropout",
    "fork",
    "huber",
    "linear",
    "maxpool",
    "mse",
    "relu",
    "scale",
    "softmax",
    "table",
    "update",
)
CODE = ("model", "rtl", "boards", "sim", "host", "tests", "bench", "examples")
NAMED_FOLDERS = ("bench", "boards", "docs", "host", "model", "rtl", "scripts", "sim", "tests")
LONGEST_FILE = 400
LONGEST_LINE = 100
UNSAFE = {"eval", "exec", "pickle.load", "pickle.loads", "torch.load", "numpy.load", "np.load"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PACKAGE = [pytest.param(path, id=name_of(path)) for path in sources(*FOLDERS)]
PYTHON = [pytest.param(path, id=name_of(path)) for path in sources(*CODE)]


def imports(path: Path) -> set[str]:
    """Modules that a file imports, ours as ``gradweave.model.plan``; lazy imports count."""
    package = ["gradweave", *path.relative_to(ROOT).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            # `from . import plan` names a module, `from .plan import Plan` an object of one.
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


def folders_of(module: str) -> list[str]:
    return module.split(".")[1:3] if module.split(".")[0] == "gradweave" else []


@pytest.mark.parametrize("path", PACKAGE)
def test_imports_point_one_way(path):
    here = path.relative_to(ROOT).parts[0]
    for module in imports(path):
        ours = folders_of(module)
        if not ours:
            assert module.split(".")[0] not in {"tests", "bench", "examples"}, module
            continue
        leaf = ours[0] == "model" and len(ours) > 1 and ours[1] in LEAVES
        assert ours[0] in FOLDERS[here] or (leaf and here in {"rtl", "boards"}), (
            f"{name_of(path)} must not import {module}"
        )


@pytest.mark.parametrize("path", PACKAGE)
def test_inner_imports_are_relative(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").split(".")[0] != "gradweave", ast.unparse(node)
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
            assert "gradweave" not in names, ast.unparse(node)


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_use_the_standard_library_alone(leaf):
    path = ROOT / "model" / f"{leaf}.py"
    for module in imports(path):
        ours = folders_of(module)
        if ours:
            assert ours[0] == "model"
            assert ours[1] in LEAVES, f"{name_of(path)} must not import {module}"
        else:
            assert module.split(".")[0] in sys.stdlib_module_names, module


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_golden_rtl_and_test_of_one_name(layer):
    assert (ROOT / "model" / "pipeline" / f"{layer}.py").is_file()
    assert (ROOT / "rtl" / "pipeline" / f"{layer}.py").is_file()
    assert (ROOT / "tests" / "pipeline" / f"test_{layer}.py").is_file()


@pytest.mark.parametrize("family", ["pipeline", "binary", "array", "grid"])
def test_no_golden_layer_stands_without_its_rtl_and_test(family):
    golden = {path.stem for path in (ROOT / "model" / family).glob("[!_]*.py")}
    hardware = {path.stem for path in (ROOT / "rtl" / family).glob("[!_]*.py")}
    proofs = {
        path.stem.removeprefix("test_") for path in (ROOT / "tests" / family).glob("test_*.py")
    }
    assert golden <= hardware
    assert golden <= proofs
    # A part of a layer may be proved by the layer's test; its docstring then names that file.
    for stem in hardware - proofs:
        text = (ROOT / "rtl" / family / f"{stem}.py").read_text()
        named = re.findall(r"``(tests/\S+\.py)``", ast.get_docstring(ast.parse(text)) or "")
        assert named, f"rtl/{family}/{stem}.py must name the test that proves it"
        assert all((ROOT / path).is_file() for path in named)


@pytest.mark.parametrize("path", PYTHON)
def test_files_are_short_and_lines_fit(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= LONGEST_FILE
    long = [n for n, line in enumerate(lines, 1) if len(line) > LONGEST_LINE]
    assert not long, f"lines over {LONGEST_LINE} columns: {long}"


@pytest.mark.parametrize("path", PACKAGE)
def test_modules_say_what_they_are_and_what_they_export(path):
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py" and not tree.body:
        return
    assert ast.get_docstring(tree)
    if path.name == "__main__.py" or len(tree.body) == 1:
        return
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]
    ]
    assert len(exported) == 1, "__all__ must be assigned once"
    assert exported[0]
    assert list(exported[0]) == sorted(exported[0], key=_export_order)


def _export_order(name: str) -> tuple[int, str]:
    """Constants, classes, then functions: the order that ruff keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("path", PYTHON)
def test_paths_that_a_docstring_names_exist(path):
    named = re.findall(rf"``((?:{'|'.join(NAMED_FOLDERS)})/[^`\s]*)``", path.read_text())
    assert [text for text in named if not (ROOT / text).exists()] == []


@pytest.mark.parametrize("path", PACKAGE)
def test_modules_name_their_test(path):
    # __init__.py of the root is told by its imports; __main__.py only calls the command line.
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    if path.name not in ("__init__.py", "__main__.py"):
        assert re.search(r"``tests/", docstring), f"{name_of(path)} must name its test"


@pytest.mark.parametrize("path", PYTHON)
def test_nothing_loads_code_from_data(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    for call in calls:
        named = ast.unparse(call.func)
        if named in {"np.load", "numpy.load"}:
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert keywords.get("allow_pickle") == "False", f"line {call.lineno}"
        else:
            assert named not in UNSAFE, f"line {call.lineno}: {named}"


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after ``statement``."""
    script = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_generating_verilog_loads_no_torch():
    loaded = loaded_after("import gradweave.rtl.generate")
    assert "amaranth" in loaded
    assert "torch" not in loaded


def test_driving_a_device_loads_no_amaranth():
    assert "amaranth" not in loaded_after("import gradweave.host.device")


def test_importing_the_package_is_light():
    assert not {"torch", "amaranth", "matplotlib"} & loaded_after("import gradweave")


def test_every_package_folder_is_installed():
    text = (ROOT / "pyproject.toml").read_text()
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            assert f'"gradweave.{".".join(init.relative_to(ROOT).parent.parts)}"' in text
