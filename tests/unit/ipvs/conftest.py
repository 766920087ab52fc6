"""A director on paper for each test."""

from collections.abc import Iterator

import pytest
from support.world import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
