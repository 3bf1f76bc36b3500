"""What a request keeps of who asks: its key, and why it may not go on."""

from aiohttp import web

from workhorse.errors import AppError
from workhorse.serve.keys import Key

# Absent where no keys exist.
KEY = web.RequestKey("key", Key)
# Set before the request's task is cancelled; absent when its client has left.
ENDED = web.RequestKey("ended", AppError)
