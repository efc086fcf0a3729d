"""NATS JetStream as a store for outlast: ``outlast.open_backend("nats://host/bucket")``."""
