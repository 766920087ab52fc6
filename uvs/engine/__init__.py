"""The engine: C primitives (csrc/) as typed Python objects. The only package that sees cffi."""
