"""Sysctls as the checks read them, and as their mending commands write them."""

from __future__ import annotations

from uvs.doctor.host import Host


def path(key: str) -> str:
    """The file of a sysctl; as in sysctl(8), a slash in the name stands for a dot (`eth0/1`)."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def sysctl(host: Host, key: str) -> int | None:
    """The value; None if there is no such sysctl, or no number in it."""
    text = host.read(path(key))
    return int(text) if text and text.lstrip("-").isdigit() else None


def conf(device: str, knob: str, family: str = "ipv4") -> str:
    """The name of a device's sysctl."""
    return f"net.{family}.conf.{device.replace('.', '/')}.{knob}"


def device(host: Host, name: str, knob: str) -> int:
    """The value for one device alone (or `all`), 0 if there is none."""
    return sysctl(host, conf(name, knob)) or 0


def devices(host: Host) -> list[str]:
    """Network devices, lo left out."""
    return [d for d in host.names("/proc/sys/net/ipv4/conf") if d not in ("all", "default", "lo")]
