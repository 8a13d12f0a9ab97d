"""Exit statuses that several commands use (docs/command-line.md)."""

INTERRUPTED = 130  # as shells know it from SIGINT
