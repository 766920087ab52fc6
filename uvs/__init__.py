"""uvs: LVS in userspace. A director that balances TCP, UDP and SCTP as IPVS does, without ip_vs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("uvs")
except PackageNotFoundError:  # run from a tree that was never installed
    __version__ = "0+unknown"
