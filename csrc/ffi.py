"""Joins the engine's headers to a cffi module: `python csrc/ffi.py core|io HEADER... OUTPUT.c`.

The headers are the declarations; only preprocessor lines that cffi cannot read are dropped.
"""

import re
import sys
from pathlib import Path

import cffi


def declarations(header: Path) -> str:
    """A header's text without the preprocessor lines other than `#define NAME NUMBER`."""
    keep = re.compile(r"#define \w+ (0x[0-9a-fA-F]+|\d+)\b")
    lines = header.read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("#") or keep.match(line))


def main(module: str, headers: list[str], output: str) -> None:
    ffi = cffi.FFI()
    paths = [Path(h) for h in headers]
    ffi.cdef("\n".join(declarations(p) for p in paths))
    ffi.set_source(f"uvs.engine._{module}", "".join(f'#include "{p.name}"\n' for p in paths))
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:-1], sys.argv[-1])
