"""The register map and packet headers: addresses, order, and which counters a design has."""

import dataclasses

from gradweave.model.registers import (
    ENGINE_COUNTERS,
    MAGIC,
    Command,
    ErrorBit,
    Memory,
    PacketKind,
    header,
    register_map,
    saturating_tensors,
)


def test_addresses_are_consecutive_words_and_names_are_unique(hand_plan):
    registers = register_map(hand_plan)
    assert [register.address for register in registers] == list(range(0, 4 * len(registers), 4))
    assert len({register.name for register in registers}) == len(registers)
    assert {register.access for register in registers} == {"ro", "rw"}


def test_host_finds_the_identity_at_fixed_addresses(hand_plan):
    addresses = {register.name: register.address for register in register_map(hand_plan)}
    assert addresses["magic"] == 0x00
    assert addresses["identity_0"] == 0x04
    assert addresses["identity_3"] == 0x10
    assert addresses["command"] == 0x14
    assert addresses["cycles_high"] == addresses["cycles"] + 4


def test_magic_spells_gwav():
    assert MAGIC.to_bytes(4, "big") == b"GWAV"


def test_only_what_the_host_sets_is_writable(hand_plan):
    writable = [register.name for register in register_map(hand_plan) if register.access == "rw"]
    assert writable == [
        "command",
        "batch",
        "lr_mantissa",
        "lr_shift",
        "momentum",
        "nesterov",
        "decay_mantissa",
        "decay_shift",
        "first_sample",
    ]


def test_first_layer_has_no_error_engine_and_others_have(hand_plan):
    names = {register.name for register in register_map(hand_plan)}
    for counter in ENGINE_COUNTERS:
        assert f"conv.fp.{counter}" in names
        assert f"conv.wg.{counter}" in names
        assert f"conv.eb.{counter}" not in names
        assert f"linear.eb.{counter}" in names
        assert f"pool.fp.{counter}" not in names
    assert {"conv.version", "linear.version"} <= names
    assert "relu.version" not in names


def test_saturation_is_counted_where_values_are_rounded(hand_plan):
    by_layer = {layer.name: saturating_tensors(layer) for layer in hand_plan.layers}
    assert by_layer == {
        "conv": ("o_feature", "weight", "bias"),
        "relu": (),
        "pool": ("i_error",),
        "linear": ("o_feature", "i_error", "weight", "bias"),
    }
    assert register_map(hand_plan)[-1].name == "loss.error.saturated"


def test_layer_without_bias_has_no_bias_counter(hand_plan):
    bare = dataclasses.replace(hand_plan.layer("conv"), bias=None)
    assert saturating_tensors(bare) == ("o_feature", "weight")


def test_header_worked_by_hand():
    assert header(PacketKind.TRAIN) == 0x1000_0000
    assert header(PacketKind.INFER) == 0x2000_0000
    assert header(PacketKind.WRITE, Memory.MOMENTUM, 2) == 0x3000_0102
    assert header(PacketKind.READ, Memory.MASTER, 255) == 0x4000_00FF


def test_commands_and_error_bits_keep_their_numbers():
    assert {command.name: int(command) for command in Command} == {
        "TRAIN": 1,
        "INFER": 2,
        "RESET": 3,
    }
    assert [bit.name for bit in ErrorBit] == [
        "PACKET_KIND",
        "PACKET_LENGTH",
        "LABEL",
        "LAYER",
        "BUSY",
    ]
    assert [int(bit) for bit in ErrorBit] == list(range(5))


def test_all_registers_of_a_large_design_fit_the_address_space(hand_plan):
    layer = hand_plan.layer("linear")
    layers = tuple(dataclasses.replace(layer, name=f"layer{n}") for n in range(64))
    registers = register_map(dataclasses.replace(hand_plan, layers=layers))
    assert registers[-1].address < 1 << 16
