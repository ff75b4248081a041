"""Saved models in one file each, without pickle, and atomic writing of files."""

from __future__ import annotations

from setsquare.storage.files import check_targets, write_files
from setsquare.storage.models import load, save

__all__ = ["check_targets", "load", "save", "write_files"]
