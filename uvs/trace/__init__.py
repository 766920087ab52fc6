"""`uvs trace`: the walks of live packets, asked of a running director, as text, JSON or a capture."""
