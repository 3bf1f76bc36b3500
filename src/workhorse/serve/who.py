"""Where a request keeps the key that it came with; absent where no keys exist."""

from aiohttp import web

from workhorse.serve.keys import Key

KEY = web.RequestKey("key", Key)
