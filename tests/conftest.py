"""Tests see the installed package, also where the checkout is the present folder: it has no extension modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) != ROOT]
os.environ["PYTHONSAFEPATH"] = "1"  # and so do the programs that they start
