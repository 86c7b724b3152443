"""Forecasts of when batches end.

`end_of_live_batches` is for batches in progress, `end_of_new_batch` for batches that have not begun. The
other files compute what these two need, such as the speed of a model, and how much work is done before a
batch. `deadline_demand` computes which rate the deadlines of lines require.
"""
