"""Matches between nets and engines: games, statistics, reports."""
