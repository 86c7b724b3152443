"""The registry: the models and backends that a process knows, and where each of their settings comes from."""
