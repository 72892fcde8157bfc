"""Gates that an export must pass before another host is asked to load it."""
