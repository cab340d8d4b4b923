"""The tables equal their definitions, computed here by other means than in the code."""

import math
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from itertools import pairwise

from gradweave.model.tables import LOG2_E, LOG2_E_FRAC, exp_table


def test_every_entry_is_the_rounded_power_in_50_decimal_digits():
    with localcontext() as context:
        context.prec = 50
        step = Decimal(2).ln() / 1024
        exact = [(Decimal(2).ln() * 16 - step * f).exp() for f in range(1024)]
        # The nearest entry to a tie is still far away, so the rounding cannot depend on precision.
        assert min(abs(x - int(x) - Decimal("0.5")) for x in exact[1:]) > Decimal("1e-5")
        rounded = [int(x.to_integral_value(ROUND_HALF_EVEN)) for x in exact]
    assert list(exp_table()) == rounded


def test_every_entry_lies_within_half_a_unit_of_the_floating_power():
    # The platform's exp2 errs by well below a millionth here.
    for f, entry in enumerate(exp_table()):
        assert abs(entry - math.exp2(16 - f / 1024)) <= 0.5 + 1e-6


def test_the_table_starts_at_one_and_falls_to_almost_a_half():
    table = exp_table()
    assert (len(table), table[0], table[512], table[-1]) == (1024, 65536, 46341, 32790)
    assert all(left > right for left, right in pairwise(table))


def test_log2_e_is_the_nearest_integer():
    assert round(math.log2(math.e) * 2**LOG2_E_FRAC) == LOG2_E
