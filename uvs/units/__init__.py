"""`uvs install-units`: the systemd units of director, monitor and metrics, which lie beside this file.

`unit` says what is written and recognises what it wrote; `command` writes and removes.
"""
