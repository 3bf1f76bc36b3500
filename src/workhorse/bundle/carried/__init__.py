"""What travels inside a bundle and checks and installs it with the system's Python alone.

`workhorse bundle verify` and `workhorse bundle install` are this very code. It imports the
standard library and nothing else.
"""
