"""Joins the engine's headers to a cffi module: `python csrc/ffi.py core|io HEADER... OUTPUT.c`.

The headers are the declarations; only preprocessor lines that cffi cannot read are dropped. `io` declares
its last header, and knows the types of those before it from `core`.
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


def module(name: str, declared: list[Path], included: list[Path], known: cffi.FFI | None = None) -> cffi.FFI:
    ffi = cffi.FFI()
    if known:
        ffi.include(known)
    ffi.cdef("\n".join(declarations(h) for h in declared))
    ffi.set_source(f"uvs.engine._{name}", "".join(f'#include "{h.name}"\n' for h in included))
    return ffi


def main(name: str, headers: list[Path], output: str) -> None:
    if name == "core":
        ffi = module(name, headers, headers)
    else:
        ffi = module(name, headers[-1:], headers, module("core", headers[:-1], headers))
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], [Path(header) for header in sys.argv[2:-1]], sys.argv[-1])
