"""Pictures are real PNG files of what they are given, and shares are counters over cycles."""

import io

import pytest
from PIL import Image
from rich.console import Console

from gradweave.host.report import (
    engine_shares,
    learning_curve,
    occupancy,
    pipeline_picture,
    summary_table,
)
from gradweave.model.errors import InputError
from gradweave.tests.plans import add, conv, fork, graph, linear, relu

HISTORY = [{"train_loss": 2.0, "test_accuracy": 0.5}, {"train_loss": 1.0, "test_accuracy": 0.75}]


@pytest.fixture
def counters(hand_plan):
    found = {"cycles": 1000}
    for layer in hand_plan.trainable:
        for engine in layer.engines:
            for state, value in {"busy": 500, "starved": 250, "blocked": 125, "waiting": 0}.items():
                found[f"{layer.name}.{engine}.{state}"] = value
    return found


def picture_size(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert len(image.convert("L").getcolors()) > 2
        return image.size


def test_shares_are_counters_over_cycles(hand_plan, counters):
    shares = engine_shares(hand_plan, counters)
    assert list(shares) == ["conv.fp", "conv.wg", "linear.fp", "linear.eb", "linear.wg"]
    assert shares["linear.eb"] == {"busy": 0.5, "starved": 0.25, "blocked": 0.125, "waiting": 0.0}


def test_counters_of_no_segment_are_refused(hand_plan):
    with pytest.raises(InputError) as caught:
        engine_shares(hand_plan, {"cycles": 0})
    assert str(caught.value) == (
        "counters must be those of a segment that ran: cycles is 0 or missing"
    )


def test_counters_of_another_design_are_refused(hand_plan, counters):
    del counters["linear.eb.starved"]
    with pytest.raises(InputError) as caught:
        engine_shares(hand_plan, counters)
    assert str(caught.value) == ("counters must contain linear.eb.starved: not this plan's design")


def test_occupancy_is_a_picture(hand_plan, counters, tmp_path):
    occupancy(hand_plan, counters, tmp_path / "occupancy.png")
    assert picture_size(tmp_path / "occupancy.png")[0] > 800


def test_pipeline_picture_grows_with_the_chain(hand_plan, tmp_path):
    pipeline_picture(hand_plan, tmp_path / "pipeline.png")
    width, height = picture_size(tmp_path / "pipeline.png")
    assert width > height
    assert (tmp_path / "pipeline.png").stat().st_size < 100_000


def test_branches_are_drawn_one_below_another(tmp_path):
    ways = [relu("r").on("f"), relu("s").on("f"), relu("t").on("f")]
    layers = (conv("c", 2, kernel=1), fork("f"), *ways, add("a").on("r", "s", "t"), linear("l", 2))
    sizes = []
    for plan in (graph((1, 4, 4), *layers), graph((1, 4, 4), layers[0], ways[0].on(), layers[-1])):
        pipeline_picture(plan, tmp_path / "pipeline.png")
        sizes.append(picture_size(tmp_path / "pipeline.png"))
    (width, height), (narrow, low) = sizes
    # Three branches, two further ones of 4.6 units; two columns more.
    assert height - low == round(2 * 4.6 * 0.95 * 110)
    assert width - narrow == round(2 * (0.92 + 0.42) * 0.95 * 110)


def test_learning_curve_has_a_panel_for_each_kind_of_figure(tmp_path):
    learning_curve(HISTORY, tmp_path / "both.png", reference=HISTORY)
    learning_curve([{"train_loss": 1.0}], tmp_path / "one.png")
    assert picture_size(tmp_path / "both.png")[0] == 2 * picture_size(tmp_path / "one.png")[0]


def test_empty_history_is_refused(tmp_path):
    with pytest.raises(InputError) as caught:
        learning_curve([], tmp_path / "curve.png")
    assert str(caught.value) == ("history must have at least one epoch, not none; call fit first")


def test_summary_table_names_every_figure():
    summary = {"bit_exact": True, "test_accuracy": 0.96875, "counters": {"cycles": 1234567}}
    text = io.StringIO()
    Console(file=text, width=60).print(summary_table(summary))
    rows = [row.strip(" │").split("│") for row in text.getvalue().splitlines() if "│" in row]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["bit exact", "yes"],
        ["test accuracy", "0.9688"],
        ["counters cycles", "1,234,567"],
    ]
