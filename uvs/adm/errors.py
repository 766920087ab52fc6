"""How a command ends other than well."""


class Fail(Exception):
    """A message for standard error (may be empty) and the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class NoCommand(Fail):
    """The first option is no command."""


class Unreadable(Fail):
    """An option that is none, or lacks its argument: ipvsadm's `-R` goes on with the next line."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 255)
