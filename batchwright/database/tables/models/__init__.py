"""Tables about models: the models of each backend, changes of the model registry, rate limits, and holds
(stops of sending by operators).
"""
