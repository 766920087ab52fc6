"""`uvs top`: what a running director does now, again and again.

`source` asks the director, `model` makes rows and rates of its answers (no I/O), `text` writes them as plain
text and JSON, `view` draws them on a terminal (textual), `command` is the command line.
"""
