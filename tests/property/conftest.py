"""Hypothesis without a time limit for an example: the sanitized build is slow."""

from hypothesis import settings

settings.register_profile("uvs", deadline=None, print_blob=True)
settings.load_profile("uvs")
