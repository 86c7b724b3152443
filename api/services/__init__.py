"""Services that the routes call, in one folder per subject. Files beside the folders serve several
subjects.
"""
