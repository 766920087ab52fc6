"""`uvs` as a user without any privilege types it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

PATH = "/usr/local/bin:/usr/bin:/bin"  # an ordinary user's on Debian: without the folders of system programs
UVS = (sys.executable, "-P", "-m", "uvs.cli")
Command = Callable[..., subprocess.CompletedProcess[str]]
