"""Scenarios: what is done to a director, and what a real kernel with ip_vs answered.

`script` reads and writes the files, `words` are the packets that they may name, `tell` says a packet in a
line, `play` does the steps on a stage: `paper` (the hook path alone), or `wire` (packets on virtual cables, with
the kernel's IPVS or `uvs run` between them).
"""
