"""Errors for people: what was wrong and what to do, in one line."""


class UserError(Exception):
    """Ends a command with its text as the message. `status`: 1 something is wrong, 2 wrong use."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status
