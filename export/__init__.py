"""From a translator to a SavedModel that other programs load."""
