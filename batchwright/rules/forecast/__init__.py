"""Forecasts of when batches end.

`end_of_live_batches` is for batches in progress, `end_of_new_batch` for batches that have not begun. The
other files compute the speeds, shares and queue that both need.
"""
