"""What `./quickstart` does once the program is built.

server.py starts and stops a server; load.py sends open-loop requests with
deadlines through tritonclient; own.py asks a model that somebody brings;
__main__.py is the story.
"""
