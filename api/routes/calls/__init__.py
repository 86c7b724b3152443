"""Single calls: routes that turn them into lines of batches, or pass them on to a backend at once."""
