"""`uvs doctor`: what this machine lacks, or has set wrongly, for a director, and the command that mends it.

Each check is a pure function of a `Host` (what it may read and try) that returns findings: one small module
per subject. `System` is the machine itself.
"""
