"""The services do the work of the API's routes. Each folder has the services for one subject; the files
beside the folders serve several subjects.
"""
