"""Stored runs side by side: one document, as Markdown or as an HTML file that needs nothing else.

`sources` reads runs, `case` is what one of them says, `tables` and `story` put the document
together, `markdown` and `page` write it, `plots` draws. `changes` is the tuner's table.
"""
