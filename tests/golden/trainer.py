"""A whole design trained by the slow definitions: the judge of ``model/network.py``."""

import torch
from torch import Tensor

from gradweave.model.formats import Format
from gradweave.model.hyper import Hyper
from gradweave.model.plan import LayerPlan, Plan
from gradweave.model.registers import saturating_tensors
from gradweave.tests.golden import reference
from gradweave.tests.golden.reference import Numbers, numbers

TABLE = [round(2 ** (16 - f / 1024)) for f in range(1024)]


def tensor(values: Numbers, shape: tuple[int, ...]) -> Tensor:
    result = torch.zeros(shape, dtype=torch.int64)
    for index, value in values.items():
        result[index] = value
    return result


class SlowNetwork:
    """Keeps every version of every working weight, and looks the wanted one up by its number."""

    def __init__(self, plan: Plan, masters: dict[str, Tensor]) -> None:
        self.plan = plan
        self.masters = {name: values.clone() for name, values in masters.items()}
        self.momenta = {name: torch.zeros_like(values) for name, values in masters.items()}
        self.batch = 0
        self.versions: dict[str, list[Tensor]] = {}
        for layer, part, formats in self._parameters():
            name = f"{layer.name}.{part}"
            pairs = [
                reference.rq(int(w), formats.master.frac, formats.working, plan.rounding)
                for w in masters[name].flatten()
            ]
            first = torch.tensor([w for w, _ in pairs]).view_as(masters[name])
            self.versions[name] = [first]
        self.saturated = {
            f"{layer.name}.{name}": 0 for layer in plan.layers for name in saturating_tensors(layer)
        } | {"loss.error": 0}

    def backward_version(self, layer: str, batch: int) -> int:
        return max(0, batch - self.plan.layer(layer).back_delay)

    def train_batch(self, x: Tensor, target: Tensor, hyper: Hyper) -> dict[str, Tensor]:
        record = {"input": x}
        features, extras, samples = {"input": numbers(x)}, {}, len(x)
        names = ["input", *(layer.name for layer in self.plan.layers)]
        # A layer without sources reads the one before it.
        sources = {
            layer.name: layer.sources or (before,)
            for before, layer in zip(names, self.plan.layers, strict=False)
        }
        for layer in self.plan.layers:
            given = [features[source] for source in sources[layer.name]]
            result, extras[layer.name] = self._forward(layer, given, samples)
            features[layer.name] = result
            if layer.kind != "fork":
                record[f"{layer.name}.o_feature"] = tensor(result, (samples, *layer.o_shape))
        logits = record[f"{names[-1]}.o_feature"].flatten(1)
        record["loss.error"] = self._loss(logits, target)
        errors: dict[str, list[Numbers]] = {name: [] for name in names}
        errors[names[-1]].append(
            numbers(record["loss.error"].unflatten(1, self.plan.layers[-1].o_shape))
        )
        for layer in reversed(self.plan.layers):
            taken = errors[layer.name]
            if layer.backward:
                if layer.kind == "fork":
                    below = [self._fork_errors(layer, taken)]
                elif layer.kind in ("add", "concat"):
                    below = reference.join_errors(layer, taken[0])
                else:
                    result, extra = features[layer.name], extras[layer.name]
                    below = [self._backward(layer, taken[0], result, extra, samples)]
                shown = taken if layer.kind in ("add", "concat") else below
                record[f"{layer.name}.i_error"] = tensor(shown[0], (samples, *layer.i_shape))
                for source, error in zip(sources[layer.name], below, strict=True):
                    errors[source].append(error)
            if layer.trainable:
                source = features[sources[layer.name][0]]
                self._update(layer, taken[0], source, samples, hyper, record)
        self.batch += 1
        return record

    def _parameters(self):
        for layer in self.plan.trainable:
            for part in ("weight", "bias"):
                if getattr(layer, part) is not None:
                    yield layer, part, getattr(layer, part)

    def _weight(self, layer: LayerPlan, version: int) -> Numbers:
        shape = (layer.o_shape[0], layer.i_shape[0], *layer.kernel)
        return numbers(self.versions[f"{layer.name}.weight"][version].view(shape))

    def _rq(self, sums: Numbers, frac: int, fmt: Format, name: str) -> Numbers:
        values, clipped = reference.rq_all(sums, frac, fmt, self.plan.rounding)
        self.saturated[name] += clipped
        return values

    def _fork_errors(self, layer: LayerPlan, errors: list[Numbers]) -> Numbers:
        sums = reference.sum_all(errors)
        return self._rq(sums, layer.o_error.frac, layer.i_error, f"{layer.name}.i_error")

    def _forward(self, layer: LayerPlan, given: list[Numbers], samples: int):
        features = given[0]
        if layer.kind == "fork":
            return features, None
        if layer.kind == "concat":
            return reference.concat(layer, given), None
        if layer.kind == "add":
            sums = reference.sum_all(given)
            name = f"{layer.name}.o_feature"
            return self._rq(sums, layer.i_feature.frac, layer.o_feature, name), None
        if layer.kind == "relu":
            return {n: max(0, value) for n, value in features.items()}, None
        if layer.kind == "maxpool2d":
            return reference.maxpool(layer, features, samples)
        version = max(0, self.batch - layer.delay)
        bias = numbers(self.versions[f"{layer.name}.bias"][version]) if layer.bias else None
        weight = self._weight(layer, version)
        sums = reference.forward_sums(layer, features, weight, bias, samples)
        frac = layer.weight.working.frac + layer.i_feature.frac
        return self._rq(sums, frac, layer.o_feature, f"{layer.name}.o_feature"), None

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        loss, rows = self.plan.loss, []
        for row, wanted in zip(logits.tolist(), target.tolist(), strict=True):
            rule = reference.cross_entropy if loss.labels else reference.value_errors
            errors, clipped = rule(row, wanted, loss, self.plan.rounding, TABLE)
            rows.append(errors)
            self.saturated["loss.error"] += clipped
        return torch.tensor(rows)

    def _backward(self, layer: LayerPlan, errors: Numbers, result: Numbers, extra, samples: int):
        if layer.kind == "relu":
            return {n: value if result[n] > 0 else 0 for n, value in errors.items()}
        name = f"{layer.name}.i_error"
        if layer.kind == "maxpool2d":
            below, clipped = reference.maxpool_errors(layer, errors, extra, samples)
            self.saturated[name] += clipped
            return below
        weight = self._weight(layer, self.backward_version(layer.name, self.batch))
        sums = reference.backward_sums(layer, errors, weight, samples)
        return self._rq(sums, layer.weight.working.frac + layer.o_error.frac, layer.i_error, name)

    def _update(self, layer, errors, source, samples, hyper, record) -> None:
        weights = reference.weight_sums(layer, errors, source, samples)
        frac = layer.o_error.frac + layer.i_feature.frac
        todo = [("weight", layer.weight, weights, frac)]
        if layer.bias:
            todo.append(
                ("bias", layer.bias, reference.bias_sums(layer, errors), layer.o_error.frac)
            )
        for part, formats, sums, sum_frac in todo:
            name = f"{layer.name}.{part}"
            shape = self.masters[name].shape
            flat = tensor(sums, tuple(max(axis) + 1 for axis in zip(*sums, strict=True))).view(
                shape
            )
            rows = [
                reference.update(
                    formats, hyper, self.plan.rounding, int(w), int(v), int(total), sum_frac
                )
                for w, v, total in zip(
                    self.masters[name].flatten(),
                    self.momenta[name].flatten(),
                    flat.flatten(),
                    strict=True,
                )
            ]
            new = [torch.tensor(column).view(shape) for column in zip(*rows, strict=True)]
            self.masters[name], self.momenta[name] = new[0], new[1]
            self.versions[name].append(new[2])
            self.saturated[name] += int(new[3].sum())
            record[f"{name}_gradient"], record[name] = flat, new[2]
