"""One call of a model in a file: what went in, from which states, and of which artifact, to be replayed elsewhere."""
