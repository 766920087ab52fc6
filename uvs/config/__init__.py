"""The configuration file, `uvs.toml`."""
