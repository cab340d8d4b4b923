"""Where the weight word of a beat lies in a weight memory.

Golden: the order of parameters in ``docs/architecture.md``. Test: ``tests/pipeline/test_conv.py``.
"""

from amaranth.hdl import Module, Signal

from ...model.plan import LayerPlan

__all__ = ["ADDRESS_LATENCY", "weight_address"]

ADDRESS_LATENCY = 2


def weight_address(
    m: Module,
    beat,
    layer: LayerPlan,
    *,
    base=0,
    banks: int = 1,
    transposed: bool = False,
    name: str = "",
) -> Signal:
    """Return the word address of ``beat``'s weights, ``ADDRESS_LATENCY`` cycles late.

    Words lie in the order (output block, tap row, tap column, input block of the output block's
    group). A forward walk has output blocks outside and input blocks inside; a ``transposed`` one
    the reverse. ``base`` is the first word of one of ``banks`` banks.
    """
    o_block, i_block = beat.outer, beat.inner
    if transposed and layer.group_passes > 1:
        o_block, i_block = beat.base + beat.inner, beat.member
    elif transposed:
        o_block, i_block = beat.inner, beat.outer
    tap_words = layer.kernel[1] * layer.fp_inner
    size = range(max(2, banks * layer.weight_words))
    blocks = Signal(size, name=f"{name}_address_blocks", reset_less=True)
    taps = Signal(size, name=f"{name}_address_taps", reset_less=True)
    address = Signal(size, name=f"{name}_address", reset_less=True)
    m.d.sync += [
        blocks.eq(o_block * (layer.kernel[0] * tap_words) + i_block + base),
        taps.eq(beat.tap_row * tap_words + beat.tap_col * layer.fp_inner),
        address.eq(blocks + taps),
    ]
    return address
