"""Single calls that may wait: routes that translate them to lines of rolling batches, and back."""
