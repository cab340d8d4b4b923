"""All errors that gradweave raises on purpose are one family: a caller needs one except clause."""

import pytest

from gradweave.model import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_gradweave_error_with_a_promise(name):
    kind = getattr(errors, name)
    assert issubclass(kind, errors.GradweaveError)
    assert kind.__doc__


def test_no_error_class_is_left_out_of_all():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes == set(errors.__all__)


def test_an_error_is_its_message():
    message = "conv1: padding must be at most 5 pixels, not 7; pad the input instead"
    with pytest.raises(errors.GradweaveError) as caught:
        raise errors.UnsupportedError(message)
    assert str(caught.value) == message


def test_errors_are_no_builtin_errors():
    for name in errors.__all__:
        bases = getattr(errors, name).__mro__
        assert not {ValueError, TypeError, RuntimeError, OSError, KeyError} & set(bases)
