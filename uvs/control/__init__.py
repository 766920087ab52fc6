"""Control: IPVS's generic netlink protocol on a Unix socket, a client for it, and the saved table.

`netlink` and `genetlink` frame and dispatch, `messages` and `extension` are the two families' attributes,
`ipvs_family` and `uvs_family` what the commands do, `server` and `client` the sockets.
"""
