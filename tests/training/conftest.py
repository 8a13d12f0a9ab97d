"""A net and a stream of batches small enough to train in a blink."""
