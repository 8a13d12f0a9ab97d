"""Exit statuses that several commands use (docs/command-line.md)."""

CONTRADICTORY = 3
"""A data file contradicts itself."""

INTERRUPTED = 130  # as shells report SIGINT
