"""FTP through a NAT service: vsftpd behind it, curl and Python's ftplib before it."""

from __future__ import annotations

import ftplib
import hashlib
import io
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from support.clients import Progress

from uvs.lab.servers import payload
from uvs.lab.topology import VIP

SIZE = 2_000_000
LARGE = 20_000_000
# Shorter than the VIP where the lab's own address of the server is longer: replies grow and shrink.
SHORT = {4: "10.1.1.1", 6: "fd01::1"}
NEAR = {4: "10.1.1.254/24", 6: "fd01::254/64"}
FOLDER = "/run/ftp"
CONFIG = f"""\
listen_ipv6=YES
run_as_launching_user=YES
seccomp_sandbox=NO
anonymous_enable=YES
anon_root={FOLDER}
write_enable=YES
anon_upload_enable=YES
anon_umask=022
no_anon_password=YES
connect_from_port_20=YES
background=NO
"""
DATA = payload(LARGE)
MODES = {
    ("PASV", 4): ["--disable-epsv", "--no-ftp-skip-pasv-ip"],
    ("EPSV", 4): [],
    ("EPSV", 6): [],
    ("PORT", 4): ["--ftp-port", "-", "--disable-eprt"],
    ("EPRT", 4): ["--ftp-port", "-"],
    ("EPRT", 6): ["--ftp-port", "-"],
}


@pytest.fixture(scope="module", params=["its own address", "a shorter address"])
def ftp(request: pytest.FixtureRequest, make_lab: Callable[..., Any]) -> Any:
    """A lab with vsftpd on rs1 and a service on port 21 in both families."""
    program = shutil.which("vsftpd", path="/usr/sbin:/usr/local/sbin")
    assert program, "vsftpd is missing: scripts/setup test"
    running = make_lab("nat", servers=1, services=False)
    lab = running.lab
    folder = lab.path(FOLDER)
    folder.mkdir()
    (folder / "data").write_bytes(DATA[:SIZE])
    (folder / "large").write_bytes(DATA)
    (folder / "incoming").mkdir()
    config = lab.path("/run/vsftpd.conf")
    config.write_text(CONFIG)
    lab.start("rs1", "vsftpd", (program, "/run/vsftpd.conf"))
    for family in (4, 6):
        server = lab.topology["rs1"].address(family)
        if request.param != "its own address":
            server = SHORT[family]
            length = 24 if family == 4 else 64
            lab.check(
                "rs1", ["ip", "addr", "add", f"{server}/{length}", "dev", "eth0", *["nodad"] * (family == 6)]
            )
            lab.check(
                "director", ["ip", "addr", "add", NEAR[family], "dev", "eth1", *["nodad"] * (family == 6)]
            )
        virtual, real = (f"[{a}]:21" if family == 6 else f"{a}:21" for a in (VIP[family], server))
        running.uvsadm("-A", "-t", virtual, "-s", "rr")
        running.uvsadm("-a", "-t", virtual, "-r", real, "-m")
    return running


def url(family: int, path: str) -> str:
    return f"ftp://{f'[{VIP[6]}]' if family == 6 else VIP[4]}/{path}"


def curl(running: Any, *arguments: str) -> str:
    return running.lab.check("client", ["curl", "-sS", "--max-time", "120", *arguments], timeout=150)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(("mode", "over"), MODES, ids=lambda v: f"IPv{v}" if isinstance(v, int) else v)
def test_curl(ftp, mode, over) -> None:
    """There and back, with one control connection for three transfers each; files arrive as they were."""
    options, family = MODES[mode, over], over
    here = ftp.lab.path("/run")
    names = [f"{mode}-{family}-{n}" for n in range(3)]
    wanted = [word for name in names for word in ("-o", f"/run/{name}", url(family, "data"))]
    curl(ftp, *options, *wanted)
    sent = [word for name in names for word in ("-T", f"/run/{name}", url(family, "incoming/"))]
    curl(ftp, *options, *sent)
    for name in names:
        assert digest((here / name).read_bytes()) == digest(DATA[:SIZE])
        assert digest((here / "ftp/incoming" / name).read_bytes()) == digest(DATA[:SIZE])


def test_a_large_file(ftp, family) -> None:
    curl(ftp, "-o", "/run/large", url(family, "large"))
    assert digest(ftp.lab.path("/run/large").read_bytes()) == digest(DATA)


def session(family: int, passive: bool, turn: Callable[[int], None]) -> list[str]:
    """Logs in and downloads twice over one control connection; `turn` is called before each."""
    found = []
    with ftplib.FTP(timeout=60) as client:
        client.trust_server_pasv_ipv4_address = True
        client.connect(VIP[family])
        client.login()
        client.set_pasv(passive)
        for i in range(2):
            turn(i)
            body = io.BytesIO()
            client.retrbinary("RETR data", body.write)
            found.append(digest(body.getvalue()))
        found.append(client.sendcmd("NOOP")[:3])
    return found


@pytest.mark.parametrize("passive", [True, False], ids=["passive", "active"])
def test_a_director_that_is_killed(ftp, family, passive) -> None:
    """Between two downloads: the control connection goes on, its sequence numbers too."""
    progress = Progress(limit=2)
    call = ftp.lab.begin("client", session, family, passive, lambda i: progress.reach(i + 1))
    try:
        progress.wait(2)
        assert ftp.director.kill()
        ftp.restart()
        progress.release()
        assert call.result(90) == [digest(DATA[:SIZE])] * 2 + ["200"]
    finally:
        call.close()


def ask(family: int) -> tuple[str, int]:
    """What the client is told to connect to."""
    with ftplib.FTP(timeout=60) as client:
        client.trust_server_pasv_ipv4_address = True
        client.connect(VIP[family])
        client.login()
        return client.makepasv()


def test_the_entry_of_a_data_connection(ftp, family) -> None:
    """-Lcn shows it awaited, from no port yet."""
    host, port = ftp.lab.call("client", ask, family)
    assert host == VIP[family]
    rows = [row.split() for row in ftp.uvsadm("-Lcn").splitlines()]
    (mine,) = (row for row in rows if row[4:] and row[4].endswith(f":{port}") and row[2] == "LISTEN")
    assert mine[3].endswith(":0")
    assert mine[5].endswith(f":{port}")
