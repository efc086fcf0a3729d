"""How much outlast costs over the raw driver of each store, and against its peers."""
