import pytest
from support.control import running


@pytest.fixture
def director(tmp_path):
    with running(tmp_path) as it:
        yield it


@pytest.fixture
def client(director):
    with director.client() as c:
        yield c
