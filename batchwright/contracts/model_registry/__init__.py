"""Schema of the registry, which names models, their backends, limits and prices."""
