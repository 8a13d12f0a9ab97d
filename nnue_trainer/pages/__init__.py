"""HTML pages that need no other file: `page` has sections, tables and plots, `plots` draws with matplotlib."""
