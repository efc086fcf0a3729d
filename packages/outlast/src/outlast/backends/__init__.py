"""The backends of the core: memory and file."""
