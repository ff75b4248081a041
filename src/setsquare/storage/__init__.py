"""Models and other results in files: one file a model, no pickle, written whole or not at all."""

from __future__ import annotations

from setsquare.storage.files import check_targets, write_files
from setsquare.storage.models import load, save

__all__ = ["check_targets", "load", "save", "write_files"]
