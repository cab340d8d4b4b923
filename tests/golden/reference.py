"""The definitions of docs/architecture.md in Python integers and fractions, one number at a time:
slow, and plainly right.

Maps are dicts from (sample, channel, row, column) to int, weights from (output, channel, row,
column) to int.
"""

from fractions import Fraction
from itertools import product
from math import floor

from torch import Tensor

from gradweave.model.formats import Format, Rounding
from gradweave.model.hyper import Hyper
from gradweave.model.plan import LayerPlan, LossPlan, ParameterPlan

Numbers = dict[tuple[int, ...], int]


def numbers(tensor: Tensor) -> Numbers:
    """Return a tensor's entries by index."""
    return {index: int(tensor[index]) for index in product(*(range(size) for size in tensor.shape))}


def round_fraction(value: Fraction, rounding: Rounding, noise: int = 0) -> int:
    if rounding is Rounding.FLOOR:
        return floor(value)
    if rounding is Rounding.HALF_UP:
        return floor(value + Fraction(1, 2))
    if rounding is Rounding.STOCHASTIC:
        return (floor(value * 2**16) + noise) // 2**16
    assert rounding is Rounding.HALF_EVEN
    return round(value)


def clip(value: int, fmt: Format) -> tuple[int, bool]:
    kept = min(max(value, fmt.min), fmt.max)
    return kept, kept != value


def rq(
    acc: int, acc_frac: int, fmt: Format, rounding: Rounding, noise: int = 0
) -> tuple[int, bool]:
    """Return ``acc * 2**-acc_frac`` in ``fmt``, and whether it was clipped."""
    return clip(round_fraction(acc * Fraction(2) ** (fmt.frac - acc_frac), rounding, noise), fmt)


def rq_all(sums: Numbers, frac: int, fmt: Format, rounding: Rounding) -> tuple[Numbers, int]:
    pairs = {index: rq(value, frac, fmt, rounding) for index, value in sums.items()}
    return {n: pair[0] for n, pair in pairs.items()}, sum(pair[1] for pair in pairs.values())


def taps(layer: LayerPlan):
    """Yield (output row, output column, kernel row, kernel column, row, column) wherever a tap
    meets the input map.
    """
    (_, height, width), (_, rows, cols) = layer.i_shape, layer.o_shape
    for y, x, ky, kx in product(
        range(rows), range(cols), range(layer.kernel[0]), range(layer.kernel[1])
    ):
        row = y * layer.stride[0] + ky * layer.dilation[0] - layer.padding[0]
        col = x * layer.stride[1] + kx * layer.dilation[1] - layer.padding[1]
        if 0 <= row < height and 0 <= col < width:
            yield y, x, ky, kx, row, col


def _places(layer: LayerPlan, samples: int):
    """Yield (sample, output channel, input channel, that channel's number in its group, tap)."""
    outputs, inputs = layer.o_shape[0] // layer.groups, layer.i_shape[0] // layer.groups
    channels = product(range(samples), range(layer.groups), range(outputs), range(inputs))
    for (n, group, o, i), tap in product(channels, list(taps(layer))):
        yield n, group * outputs + o, group * inputs + i, i, tap


def forward_sums(
    layer: LayerPlan, features: Numbers, weight: Numbers, bias: Numbers | None, samples: int
) -> Numbers:
    shift = 0
    if layer.bias is not None:
        shift = layer.weight.working.frac + layer.i_feature.frac - layer.bias.working.frac
    sums = {
        (n, *place): (bias[place[0],] << shift if bias else 0)
        for n in range(samples)
        for place in product(*map(range, layer.o_shape))
    }
    for n, o, c, i, (y, x, ky, kx, row, col) in _places(layer, samples):
        sums[n, o, y, x] += weight[o, i, ky, kx] * features[n, c, row, col]
    return sums


def backward_sums(layer: LayerPlan, errors: Numbers, weight: Numbers, samples: int) -> Numbers:
    sums = dict.fromkeys(product(range(samples), *map(range, layer.i_shape)), 0)
    for n, o, c, i, (y, x, ky, kx, row, col) in _places(layer, samples):
        sums[n, c, row, col] += weight[o, i, ky, kx] * errors[n, o, y, x]
    return sums


def weight_sums(layer: LayerPlan, errors: Numbers, features: Numbers, samples: int) -> Numbers:
    shape = (layer.o_shape[0], layer.i_shape[0] // layer.groups, *layer.kernel)
    sums = dict.fromkeys(product(*map(range, shape)), 0)
    for n, o, c, i, (y, x, ky, kx, row, col) in _places(layer, samples):
        sums[o, i, ky, kx] += errors[n, o, y, x] * features[n, c, row, col]
    return sums


def bias_sums(layer: LayerPlan, errors: Numbers) -> Numbers:
    sums = {(o,): 0 for o in range(layer.o_shape[0])}
    for (_, o, _, _), value in errors.items():
        sums[o,] += value
    return sums


def maxpool(layer: LayerPlan, features: Numbers, samples: int) -> tuple[Numbers, dict]:
    """Return the maxima and, for each, the (row, column) of the first one in tap order."""
    best: Numbers = {}
    places = {}
    for n, c, (y, x, _, _, row, col) in product(
        range(samples), range(layer.i_shape[0]), taps(layer)
    ):
        value = features[n, c, row, col]
        if (n, c, y, x) not in best or value > best[n, c, y, x]:
            best[n, c, y, x], places[n, c, y, x] = value, (row, col)
    return best, places


def maxpool_errors(
    layer: LayerPlan, errors: Numbers, places: dict, samples: int
) -> tuple[Numbers, int]:
    sums = dict.fromkeys(product(range(samples), *map(range, layer.i_shape)), 0)
    for (n, c, y, x), (row, col) in places.items():
        sums[n, c, row, col] += errors[n, c, y, x]
    return rq_all(sums, layer.i_error.frac, layer.i_error, Rounding.FLOOR)


def sum_all(terms: list[Numbers]) -> Numbers:
    return {index: sum(term[index] for term in terms) for index in terms[0]}


def concat(layer: LayerPlan, features: list[Numbers]) -> Numbers:
    joined, first = {}, 0
    for part, source in zip(layer.parts, features, strict=True):
        joined |= {(n, c + first, y, x): value for (n, c, y, x), value in source.items()}
        first += part
    return joined


def join_errors(layer: LayerPlan, errors: Numbers) -> list[Numbers]:
    """Return what each source of an addition or a concatenation gets."""
    if layer.kind == "add":
        return [errors] * len(layer.sources)
    ends = [sum(layer.parts[: n + 1]) for n in range(len(layer.parts))]
    split = []
    for part, end in zip(layer.parts, ends, strict=True):
        first = end - part
        split.append(
            {
                (n, c - first, y, x): value
                for (n, c, y, x), value in errors.items()
                if first <= c < end
            }
        )
    return split


def cross_entropy(
    logits: list[int], label: int, loss: LossPlan, rounding: Rounding, table: list[int]
) -> tuple[list[int], int]:
    """Return one sample's errors and how many were clipped; label ``outputs`` is ignored."""
    weights = [Fraction(w, 1 << loss.weight_frac) for w in loss.class_weights] or [Fraction(1)]
    guard = 0
    while max(weights) > 1 << guard:
        guard += 1
    frac = loss.error.frac + guard
    weight = Fraction(0) if label == loss.outputs else (weights * loss.outputs)[label]
    powers = exponentials(logits, loss.feature, rounding, table)
    pairs = []
    for n, power in enumerate(powers):
        p = round(Fraction(power << frac, sum(powers)))
        exact = weight * (p - ((1 << frac) if n == label else 0)) / (1 << frac)
        value = round_fraction(exact * Fraction(2) ** loss.error.frac, rounding)
        pairs.append(clip(value, loss.error))
    return [value for value, _ in pairs], sum(hit for _, hit in pairs)


def softmax(
    values: list[int], layer: LayerPlan, rounding: Rounding, table: list[int]
) -> tuple[list[int], int]:
    """Return one pixel's probabilities and how many were clipped."""
    powers = exponentials(values, layer.i_feature, rounding, table)
    exact = [Fraction(power, sum(powers)) * 2**layer.o_feature.frac for power in powers]
    pairs = [clip(round(value), layer.o_feature) for value in exact]
    return [value for value, _ in pairs], sum(hit for _, hit in pairs)


def softmax_error(
    results: list[int], errors: list[int], layer: LayerPlan, rounding: Rounding
) -> tuple[list[int], int]:
    """Return the errors of one pixel's values and how many were clipped."""
    p = [Fraction(n, 1 << layer.o_feature.frac) for n in results]
    e = [n * Fraction(2) ** -layer.o_error.frac for n in errors]
    mean = sum(a * b for a, b in zip(p, e, strict=True))
    exact = [a * (b - mean) * Fraction(2) ** layer.i_error.frac for a, b in zip(p, e, strict=True)]
    pairs = [clip(round_fraction(value, rounding), layer.i_error) for value in exact]
    return [value for value, _ in pairs], sum(hit for _, hit in pairs)


def exponentials(
    logits: list[int], feature: Format, rounding: Rounding, table: list[int]
) -> list[int]:
    exponent = Format(15, 10, signed=False)
    powers = []
    for z in logits:
        t, _ = rq((max(logits) - z) * 47274, feature.frac + 15, exponent, rounding)
        powers.append(table[t % 1024] >> (t // 1024))
    return powers


def value_errors(
    logits: list[int], targets: list[int], loss: LossPlan, rounding: Rounding, table: list[int]
) -> tuple[list[int], int]:
    """Return one sample's errors under a loss of values, and how many were clipped."""
    pairs = []
    for z, t in zip(logits, targets, strict=True):
        exact = Fraction(z - t) * Fraction(2) ** -loss.feature.frac
        if loss.kind == "huber":
            delta = loss.delta * Fraction(2) ** -loss.feature.frac
            exact = min(max(exact, -delta), delta)
        if loss.kind == "binary_cross_entropy":
            here, there = exponentials([z, 0], loss.feature, rounding, table)
            p = round(Fraction(here << loss.error.frac, here + there))
            exact = Fraction(p, 1 << loss.error.frac) - Fraction(t, 1 << loss.feature.frac)
        value = round_fraction(exact * Fraction(2) ** loss.error.frac, rounding)
        pairs.append(clip(value, loss.error))
    return [value for value, _ in pairs], sum(hit for _, hit in pairs)


def update(
    formats: ParameterPlan,
    hyper: Hyper,
    rounding: Rounding,
    w: int,
    v: int,
    total: int,
    frac: int,
    noise: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> tuple[int, int, int, bool]:
    """Return one parameter's new (master, momentum, working weight) and whether anything was
    clipped on the way; ``noise`` is that of gradient, decay, momentum and step.
    """
    hits = []
    settled = Rounding.HALF_EVEN if rounding is Rounding.STOCHASTIC else rounding

    def step(result: tuple[int, bool]) -> int:
        hits.append(result[1])
        return result[0]

    grad, master, working = formats.gradient, formats.master, formats.working
    g = step(rq(total, frac, grad, rounding, noise[0]))
    shrunk = hyper.decay_mantissa * w
    decay = step(rq(shrunk, master.frac + hyper.decay_shift, grad, rounding, noise[1]))
    d = step(clip(g + decay, grad))
    carry = step(rq(hyper.momentum * v, grad.frac + 16, grad, rounding, noise[2]))
    v = step(clip(carry + d, grad))
    ahead = step(rq(hyper.momentum * v, grad.frac + 16, grad, rounding, noise[2]))
    move = step(clip(d + ahead, grad)) if hyper.nesterov else v
    taken = hyper.lr_mantissa * move
    delta = step(rq(taken, grad.frac + hyper.lr_shift, master, rounding, noise[3]))
    w = step(clip(w - delta, master))
    return w, v, step(rq(w, master.frac, working, settled)), any(hits)
