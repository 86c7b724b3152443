"""Services, which do the work of the API's routes. Each folder has the services for one subject, such as
batches. The files outside the folders serve several subjects.
"""
