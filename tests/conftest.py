"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine makes a single example slow; only the whole run has a time worth judging.
settings.register_profile("topics", deadline=None, print_blob=True)
settings.load_profile("topics")
