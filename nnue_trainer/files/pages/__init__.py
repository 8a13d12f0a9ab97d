"""Reports: `page` has sections, tables and plots as HTML, text and JSON; `plots` draws with matplotlib."""
