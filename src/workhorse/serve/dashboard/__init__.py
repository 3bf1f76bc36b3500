"""The page at `/`, what it shows, and the routes that both come from."""
