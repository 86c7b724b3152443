"""Registry of models and their backends: the models in effect, and the source of each setting."""
