"""What `./quickstart` does once the program is built.

server.py starts and stops a server; load.py sends open-loop requests with
deadlines through tritonclient; __main__.py is the story.
"""
