"""Schema of the model registry, which names models, their backends, limits and prices."""
