"""A director under traffic and changes for long (scripts/soak): what must stay the same stays the same."""
