"""Helpers that every room may use and that depend on no room: systems, progress, optional packages, users' code."""
