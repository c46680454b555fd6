"""Does a prompt go back to the worker that has its beginning in its cache?"""
