"""The errors of gradweave, one class per kind of cause.

Every message says what is wrong, where (layer, tensor, shape, file, board), what was expected and
what to do next. The command line prints the message alone; ``--debug`` adds the traceback.

Test: ``tests/test_errors.py``.
"""

__all__ = [
    "CheckpointError",
    "DeviceError",
    "FormatError",
    "GradweaveError",
    "GradweaveWarning",
    "InputError",
    "PlanError",
    "ToolError",
    "UnsupportedError",
    "VerifyError",
]


class GradweaveError(Exception):
    """The base of every error that gradweave raises on purpose."""


class GradweaveWarning(GradweaveError, UserWarning):
    """Something that works but probably not as meant: the message names the tensor and the remedy.

    It is issued by ``warnings.warn``; where warnings are errors, it is caught like any other error
    of gradweave.
    """


class FormatError(GradweaveError):
    """A fixed-point format or a value that does not fit it."""


class UnsupportedError(GradweaveError):
    """A layer, argument or graph that is refused: the message names the module's path, its type and
    the rule.
    """


class PlanError(GradweaveError):
    """A plan that cannot be made or is inconsistent: the message names the limit and by how much it
    is missed.
    """


class InputError(GradweaveError):
    """Data, labels or hyperparameters that cannot be used: shape, type, range, NaN."""


class ToolError(GradweaveError):
    """A missing or failing tool (simulator, compiler): the message says which and how to get it."""


class DeviceError(GradweaveError):
    """A device that does not answer, stalls, or is not the one that the design was made for."""


class CheckpointError(GradweaveError):
    """A checkpoint that is damaged, cut short or made by another design."""


class VerifyError(GradweaveError):
    """Hardware and golden model differ: names layer, tensor, sample, first index, expected, got and
    format.
    """
