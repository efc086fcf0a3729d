"""``outlast demo``: a model turn is killed in mid-stream, and another process finishes it."""
