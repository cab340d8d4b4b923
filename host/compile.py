"""``compile``: from a torch module to a design.

Test: ``tests/test_compile.py``.
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.export import ExportedProgram

from ..model.calibrate import calibrate
from ..model.errors import InputError
from ..model.exported import as_module
from ..model.formats import Format, Rounding
from ..model.trace import trace
from .design import Design
from .planner import plan_design
from .quantize import quantize_parameters

__all__ = ["compile"]

Versions = str | Mapping[str, int]


def compile(  # noqa: A001
    model: nn.Module | ExportedProgram,
    example_input: Tensor,
    *,
    loss: str | nn.Module = "cross_entropy",
    targets: Tensor | None = None,
    board: str = "sim",
    batch: int = 32,
    batch_max: int | None = None,
    formats: Mapping[str, Format | int] | None = None,
    versions: Versions = "flush",
    back_versions: Versions | None = None,
    interval: int | None = None,
    rounding: str = "half_even",
    seed: int = 0,
    probes: bool = False,
    name: str | None = None,
    per_channel: bool = False,
) -> Design:
    """Trace, calibrate and plan a model; return the design that trains it.

    Parameters
    ----------
    model : nn.Module, an acyclic graph of the layers that ``model/rules.py`` lists, which ends in
        a vector of logits, or what ``torch.export.export`` makes of one; left as it is. BatchNorm
        normalises by the statistics that the model holds, which stay frozen in training.
    example_input : floating [N, C, H, W] or [N, features]
        Real samples: shapes and number formats come from them.
    loss : ``cross_entropy``, ``mse``, ``huber``, ``bce_with_logits``, or a torch module:
        ``nn.CrossEntropyLoss`` (``weight``, ``ignore_index``), ``nn.MSELoss``, ``nn.HuberLoss``,
        ``nn.SmoothL1Loss``, ``nn.BCEWithLogitsLoss``; ``reduction`` is ``mean`` or ``sum``
    targets : of ``example_input``, for the calibration of errors; random ones when None
    board : name of the board whose budget the folding must keep
    batch, batch_max : samples per mini-batch, as planned and at most; ``batch_max`` is ``batch``
        when None
    formats : number formats by hand, see ``model/calibrate.py``
    versions : ``flush`` (plain synchronous SGD), ``delayed``, or the delay of each layer by name
    back_versions : the same for the backward pass
    interval : cycles per sample to reach at the least cost, instead of the fastest design within
        the budget
    rounding : ``half_even``, ``half_up``, ``floor`` or ``stochastic``, see ``Rounding``
    seed : of everything that is random
    probes : bring every tensor out of the board, for ``gradweave verify``
    name : of the design; the model's class when None
    per_channel : weights of each output channel get a fraction of their own, see
        ``model/calibrate.py``

    Raises
    ------
    UnsupportedError
        For a layer, argument or rounding mode that the hardware does not have.
    InputError, FormatError, PlanError
        For data, formats or limits that cannot be used.
    """
    modes = [mode.value for mode in Rounding]
    if rounding not in modes:
        raise InputError(f"rounding must be one of {modes}, not {rounding!r}")
    most = batch if batch_max is None else batch_max
    if not 1 <= batch <= most:
        raise InputError(f"batch must be 1 to batch_max = {most} samples, not {batch}")
    if isinstance(model, ExportedProgram):
        model = as_module(model)
    graph = trace(model, example_input, loss)
    state = {key: tensor.detach().cpu() for key, tensor in model.state_dict().items()}
    chosen = calibrate(
        graph,
        state,
        example_input.cpu(),
        targets,
        batch=most,
        formats=formats,
        seed=seed,
        per_channel=per_channel,
    )
    plan = plan_design(
        graph,
        chosen,
        board=board,
        batch=batch,
        batch_max=most,
        versions=versions,
        back_versions=back_versions,
        interval=interval,
        rounding=Rounding(rounding),
        seed=seed,
        probes=probes,
        name=name or type(model).__name__.lower(),
    )
    masters = quantize_parameters(plan, state)
    frozen = {key: tensor.clone() for key, tensor in state.items() if key not in masters}
    return Design(plan, masters, model, frozen)
