"""Bundles: all that another machine needs to serve a model, without a network.

`order.py` decides what goes in, `wheels.py`, `own_wheel.py` and `sources.py` bring it together,
`assemble.py` writes the folder, `archive.py` the tar. `carried/` travels inside each bundle.
"""
