"""Hypothesis without a time limit for an example; fewer examples over the sanitized build, which is slow."""

import os

from hypothesis import settings

settings.register_profile("uvs", deadline=None, print_blob=True)
settings.register_profile("sanitized", deadline=None, print_blob=True, max_examples=25)
settings.load_profile(os.environ.get("UVS_HYPOTHESIS_PROFILE", "uvs"))
