"""The study beside the package: the paper's tables and figures, other methods to compare with, and the data of both.

It is not in the wheel. Run it from a clone: ``pip install -e '.[studies]'``, then ``python -m studies --list``.
"""
