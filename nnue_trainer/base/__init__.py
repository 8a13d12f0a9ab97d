"""What every room may use and what depends on none of them: systems, progress, optional packages, code of users."""
