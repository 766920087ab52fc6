"""uvs: LVS in userspace. A director that balances TCP, UDP and SCTP as IPVS does, without ip_vs."""

__version__: str


def __getattr__(name: str) -> str:
    """`__version__` is looked up when it is asked for: importlib.metadata doubles a command's start-up."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("uvs")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"
