"""Contracts between the processes: the types of everything that one process writes and another one reads.

`api_objects/` is what the HTTP API returns, `temporal_payloads/` what Temporal stores, and `model_registry/`
what operators configure of models. `terms`, `errors` and `calls` are shared by all of them.
"""
