"""The paper's tables and figures, run again: what was printed, what its set-up gives, and what is true.

One file a table or figure, each with ``run(quick, cells, progress) -> Record`` and, where there is a figure,
``draw(record, path)``. ``targets.json`` holds the printed figures; :mod:`~studies.paper.catalogue` lists all of them.
"""
