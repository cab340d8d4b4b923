"""What the documents say is what there is: catalogue, example, registers, links, commands."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from gradweave.host.catalogue import CATALOGUE, catalogue_table, paths, replace_catalogue
from gradweave.host.cli import app
from gradweave.host.kind_figures import kind_figures
from gradweave.host.register_docs import general_page, registers_html, registers_markdown
from gradweave.model.kinds import KINDS, TABLES
from gradweave.model.registers import register_map
from gradweave.model.trace import trace

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "docs").rglob("*.md"),
]


def test_catalogue_is_current():
    assert replace_catalogue(README) == README, "run .venv/bin/python scripts/docs.py"


def test_catalogue_names_files_that_exist():
    for path in re.findall(r"\]\(([\w/]+\.py)\)", catalogue_table()):
        assert (ROOT / path).is_file(), path


def test_catalogue_lists_every_golden_layer():
    stems = {entry.stem for entry in CATALOGUE if "golden" in paths(entry)}
    assert stems == {path.stem for path in (ROOT / "model" / "pipeline").glob("[!_]*.py")}


def test_catalogue_has_the_figures_of_every_kind():
    shown = {entry.kind for entry in CATALOGUE if entry.kind is not None}
    assert shown | set(TABLES) == set(KINDS)
    # 46 rows of taps by 46 columns, for each of 16 outputs and 16 inputs.
    assert "| 541,696, 541,696 | 16 |" in catalogue_table()
    for kind in KINDS:
        figures = kind_figures(kind)
        assert figures.fp_interval > 0
        assert figures.latency > 0
    relu, average = kind_figures("relu"), kind_figures("avgpool2d")
    assert (relu.fp_interval, relu.latency, relu.dsp) == (4096, 1, 0)
    # A mask's bit waits for each of 4,096 values, and a few more: a RAMB18 of 8,192 words.
    assert relu.bram36 == 0.5
    assert average.dsp == 2  # a reciprocal each way


@pytest.mark.parametrize("kind", ["Conv2d", "Linear", "ReLU", "MaxPool2d", "Flatten", "Identity"])
def test_layers_of_the_catalogue_are_traced(kind):
    assert f"`{kind}`" in {entry.torch for entry in CATALOGUE}
    arguments = {"Conv2d": (1, 2, 11, 3, 5), "Linear": (4, 3), "MaxPool2d": (3, 2, 1)}
    layer = getattr(nn, kind)(*arguments.get(kind, ()))
    x = torch.zeros(2, 4) if kind == "Linear" else torch.zeros(2, 1, 8, 8)
    last = nn.Identity() if kind == "Linear" else nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    model = nn.Sequential(layer, last)
    model(x)
    assert trace(model, x).outputs == 3


def test_example_is_the_file_and_short():
    text = (ROOT / "examples" / "digits.py").read_text()
    shown = README.partition("<!-- example: the text of examples/digits.py -->")[2]
    assert shown.partition("```python\n")[2].partition("```")[0] == text
    assert len(text.splitlines()) <= 24


def test_commands_of_the_readme_exist():
    known = {info.callback.__name__ for info in app.registered_commands}
    shell = "".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    named = set(re.findall(r"^gradweave (\w+)", shell, re.MULTILINE))
    assert named
    assert named <= known
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", shell, re.MULTILINE)) <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target


def test_register_page_is_current(hand_plan):
    page = (ROOT / "docs" / "registers.md").read_text()
    assert page == general_page(hand_plan), "run .venv/bin/python scripts/docs.py"


def test_register_maps_of_a_design_name_every_register(hand_plan):
    for page in (registers_markdown(hand_plan), registers_html(hand_plan)):
        assert hand_plan.identity in page
        for register in register_map(hand_plan):
            assert register.name in page
            assert f"0x{register.address:04x}" in page


def test_html_escapes_names(hand_plan):
    page = registers_html(dataclasses.replace(hand_plan, name="<script>"))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_every_dependency_says_why():
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    for named in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        assert re.search(rf'"{re.escape(named)}",  # \w', text), named


def test_lock_pins_every_dependency_exactly():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = {line.partition("==")[0].lower() for line in lines if not line.startswith("#")}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines if line[:1] != "#")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for named in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        assert re.match(r"[\w-]+", named)[0].lower() in pins, named


def test_version_is_in_the_changelog_or_unreleased():
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_licence_is_apache():
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
