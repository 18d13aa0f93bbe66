"""One call, from arrays to a launch."""
