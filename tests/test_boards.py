"""The catalogue of boards: every file loads, and faults in one are named."""

import pytest

from gradweave.boards.catalog import FOLDER, load, names, read
from gradweave.model.errors import PlanError

GOOD = (FOLDER / "kc705.toml").read_text()


def test_every_board_loads_and_names_its_source():
    assert names() == ["alveo-u50", "arty-a7-100t", "kc705", "pynq-z2", "sim", "vc709"]
    for name in names():
        board = load(name)
        assert board.name == name
        assert board.source


@pytest.mark.parametrize(
    ("name", "part", "lut", "ff", "bram36", "dsp"),
    [
        ("vc709", "XC7VX690T", 433_200, 866_400, 1_470, 3_600),
        ("arty-a7-100t", "XC7A100T", 63_400, 126_800, 135, 240),
        ("kc705", "XC7K325T", 203_800, 407_600, 445, 840),
        ("pynq-z2", "XC7Z020", 53_200, 106_400, 140, 220),
        ("alveo-u50", "XCU50", 871_680, 1_743_360, 1_344, 5_952),
    ],
)
def test_resources_are_those_of_the_part(name, part, lut, ff, bram36, dsp):
    board = load(name)
    assert board.part.startswith(part)
    assert (board.lut, board.ff, board.bram36, board.dsp) == (lut, ff, bram36, dsp)


def test_an_unknown_board_lists_the_known_ones():
    with pytest.raises(PlanError) as error:
        load("vc710")
    assert str(error.value) == (
        "board must be one of alveo-u50, arty-a7-100t, kc705, pynq-z2, sim, vc709, not 'vc710'"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dsp = 840", "dsp = 0", "x.toml: dsp must be a positive integer, not 0"),
        ("dsp = 840", "dsp = true", "x.toml: dsp must be a positive integer, not True"),
        ("dsp = 840", "dsp = 8.5", "x.toml: dsp must be a positive integer, not 8.5"),
        ('part = "XC7K325T-2FFG900C"', 'part = ""', "x.toml: part must be text, not ''"),
        (
            "dsp = 840",
            "dps = 840",
            "x.toml must have exactly the entries part, lut, ff, bram36, dsp, clock_hz, source; "
            "missing: dsp; unknown: dps",
        ),
    ],
)
def test_a_faulty_entry_is_named(tmp_path, old, new, message):
    path = tmp_path / "x.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(PlanError) as error:
        read(path)
    assert str(error.value) == message


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("part = ")
    with pytest.raises(PlanError, match=r"^x\.toml must be TOML; Invalid value"):
        read(path)
