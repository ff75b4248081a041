"""Every data set of the study has a loader, and its entry is well formed."""

from __future__ import annotations

import re
from pathlib import Path

from setsquare.datasets.loaders import LOADERS as PACKAGED
from studies.datasets import LOADERS, REGISTRY


def test_every_entry_has_a_loader_and_is_well_formed() -> None:
    assert LOADERS.keys() == REGISTRY.keys()
    for name, info in REGISTRY.items():
        assert info.name == name and info.protected and info.source and info.licence
        for file in (candidate for needed in info.files for candidate in needed.candidates):
            unpublished = name == "mimic_chest_xrays" and file.sha256 == "" and not file.urls
            assert re.fullmatch("[0-9a-f]{64}", file.sha256) or unpublished
            assert not Path(file.path).is_absolute() and ".." not in Path(file.path).parts
            assert all(url.startswith("https://") for url in file.urls)


def test_no_name_stands_for_two_data_sets() -> None:
    assert not LOADERS.keys() & PACKAGED.keys()
