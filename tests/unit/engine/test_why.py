"""Reasons: one list, in C and in Python."""

import pytest

from uvs.engine.core import Why, lib, why_name


@pytest.mark.parametrize("why", Why, ids=lambda w: w.label)
def test_name_is_the_label(why: Why) -> None:
    assert why_name(why) == why.label


def test_python_knows_every_reason() -> None:
    assert [int(w) for w in Why] == list(range(lib.UVS_WHY_MAX))


@pytest.mark.parametrize("number", [-1, lib.UVS_WHY_MAX, 1 << 20])
def test_numbers_that_are_no_reason(number: int) -> None:
    assert why_name(number) == "?"
