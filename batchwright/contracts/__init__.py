"""Contracts between the processes: types of the data that one process writes and another process reads.

`api_objects/` has the objects that the HTTP API returns. `temporal_payloads/` has the payloads that Temporal
stores. `model_registry/` has the settings of models that operators write. They share the modules `terms`,
`errors` and `calls`.
"""
