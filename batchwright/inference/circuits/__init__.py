"""Circuit breakers, one for each model at each backend. A circuit breaker gets the results of requests, and
stops requests while its backend fails.
"""
