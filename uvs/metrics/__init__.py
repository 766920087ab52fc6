"""`uvs metrics`: what a running director counts, for Prometheus.

`families` has every metric, `ask` what is asked of a director; `collect` makes the one of the other,
`exposition` text of that; `serve` and `command` hand it out.
"""
