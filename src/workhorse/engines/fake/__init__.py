"""A test engine: speaks like llama-server, keeps told times exactly, misbehaves when told to.

`python -m workhorse.engines.fake --port N` starts it. It needs no model, so what stands in front
of an engine (the gateway, the bench, the supervisor) can be measured and tested against times
and faults that are known beforehand. `tokens` makes its text, `wire` the shapes of its answers,
`server` its slots and times, `__main__` its command line.
"""
