"""The charts of the report, one file each, as Vega-Lite itself: dictionaries that a test holds to its schema.

A chart names its data and holds none: the HTML page fills in what is chosen there, `plots.py` one choice.
The columns a chart expects are in its docstring.
"""
