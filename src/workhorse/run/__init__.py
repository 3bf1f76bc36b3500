"""Own live processes: start, watch, restart, stop."""
