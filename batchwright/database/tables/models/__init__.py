"""The models that backends list, changes of the registry, and what limits or stops the sending to models."""
