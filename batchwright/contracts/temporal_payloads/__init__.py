"""Arguments and results of workflows and activities, and the declarations of the activities.

There is one module for each phase of a batch.
"""
