"""Chess engines as child processes: the one UCI client, several at once, and what Stockfish prints for `eval`."""
