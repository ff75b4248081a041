"""Saved models in one file each, without pickle, and atomic writing of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setsquare._lazy import names_by_module

if TYPE_CHECKING:
    from setsquare.storage.files import check_targets, write_files
    from setsquare.storage.models import load, save

__all__ = ["check_targets", "load", "save", "write_files"]
__getattr__ = names_by_module(__name__, {"files": ("check_targets", "write_files"), "models": ("load", "save")})
