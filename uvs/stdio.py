"""Standard streams that are closed, or that cannot be written to any more."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def make_whole() -> None:
    """Open /dev/null in place of standard streams that the caller closed (`>&-`).

    Else the next file or socket gets their descriptor, and messages are written into it.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w"))


def let_go(stream: TextIO) -> None:
    """Lead a stream that cannot be written to any more to /dev/null: its buffer is flushed at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
