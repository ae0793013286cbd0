"""The charts of the report, one file each, as Vega-Lite made with Altair.

A chart names its data and holds none: the HTML page fills in what is chosen there, `plots.py` one choice.
The columns a chart expects are in its docstring.
"""
