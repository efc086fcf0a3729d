"""How much a store costs through outlast, beside its raw driver doing one plain durable write."""
