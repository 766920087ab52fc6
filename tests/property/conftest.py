"""Hypothesis without limits of time; fewer examples over the sanitized build, which is slow."""

import os

from hypothesis import HealthCheck, settings

timeless = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("uvs", timeless)
settings.register_profile("sanitized", timeless, max_examples=25)
settings.load_profile(os.environ.get("UVS_HYPOTHESIS_PROFILE", "uvs"))
