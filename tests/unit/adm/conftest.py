import io
import sys

import pytest
from support.control import Ran, RealIpvsadm, running

from uvs.adm import cli


@pytest.fixture(scope="session")
def ipvsadm():
    return RealIpvsadm()


@pytest.fixture
def director(tmp_path):
    with running(tmp_path) as it:
        yield it


@pytest.fixture
def uvsadm(director, monkeypatch, capsys):
    """Runs uvsadm in this process under the name ipvsadm, so that messages can be compared."""
    monkeypatch.setenv("UVS_SOCKET", director.path)
    monkeypatch.setattr(sys, "argv", ["/usr/sbin/ipvsadm"])

    def run(*words, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        status = cli.main(list(words))
        out, err = capsys.readouterr()
        return Ran(status, out, err.replace("uvsadm", "ipvsadm"))

    return run
