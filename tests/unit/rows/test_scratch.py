"""Blocks in a temporary file: what comes back is what went in, and the source is read no more than needed."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import InputError
from setsquare.rows.blocks import Block
from setsquare.rows.passes import LocalParts, Piece
from setsquare.rows.scratch import ScratchParts, Store


def draw(n: int, *, short: bool = False, weighted: bool = False, offset: bool = False, alone: bool = False) -> Block:
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, 7)).astype(np.float32 if short else np.float64).astype(np.float64)
    Z = np.asfortranarray(np.column_stack([np.ones(n), A[:, :3]]))
    w = rng.random(n) if weighted else np.full(n, 1.0 / 3.0)
    return Block(Z, A[:, 3:4], np.zeros((n, 0)), w, A[:, 4:5] if offset else None, None if alone else A[:, 5:])


class Counted:
    """A source of blocks that counts how often it is read."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.n_readings = sizes, 0

    def __call__(self) -> Iterator[Piece]:
        self.n_readings += 1
        return (Piece(draw(n), n, "") for n in self.sizes)


def total(block: Block) -> float:
    return float(block.Z.sum() + block.y.sum())


@pytest.mark.parametrize("kind", [{}, {"weighted": True}, {"offset": True}, {"alone": True}])
@pytest.mark.parametrize("short", [True, False])
def test_a_block_comes_back_to_the_last_digit(kind: dict[str, bool], short: bool, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    blocks = [draw(n, short=short, **kind) for n in (5, 1, 200)]
    places = [store.save(block) for block in blocks]
    for block, place in reversed(list(zip(blocks, places, strict=True))):
        assert place is not None
        back = store.load(place)
        for name in ("Z", "y", "Q", "weight", "offset", "X"):
            one, other = getattr(block, name), getattr(back, name)
            assert (one is None) == (other is None), name
            assert one is None or np.array_equal(one, other), name
        assert back.Z.flags.f_contiguous
    if not kind.get("weighted"):
        assert {place.dtype for place in places if place} == {np.float32 if short else np.float64}


def test_numbers_beyond_single_precision_are_kept_in_double(tmp_path: Path) -> None:
    block, store = draw(3, short=True), Store(str(tmp_path))
    block.Z[0, 1] = 1e300
    place = store.save(block)
    assert place is not None
    assert place.dtype is np.float64
    assert store.load(place).Z[0, 1] == 1e300


def test_the_source_is_read_once(tmp_path: Path) -> None:
    source = Counted((4, 3, 5))
    parts = ScratchParts(LocalParts(source), Store(str(tmp_path)))
    first = list(parts.map(total))
    assert [list(parts.map(total)) for _ in range(3)] == [first] * 3
    assert parts.reduce(total, lambda a, b: a + b) == pytest.approx(sum(first))
    assert source.n_readings == 1


def test_a_pass_that_was_broken_off_does_not_count(tmp_path: Path) -> None:
    source = Counted((4, 3, 5))
    parts = ScratchParts(LocalParts(source), Store(str(tmp_path)))
    next(iter(parts))
    assert [block.Z.shape[0] for block in parts] == [4, 3, 5]
    assert [block.Z.shape[0] for block in parts] == [4, 3, 5]
    assert source.n_readings == 2


def test_functions_may_change_blocks(tmp_path: Path) -> None:
    def double(block: Block) -> Block:
        block.Z[:] *= 2.0
        return block

    parts = ScratchParts(LocalParts(Counted((4, 3))), Store(str(tmp_path)))
    passes = [list(parts.map(double).map(total)) for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]


def test_a_full_disk_means_another_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(self: Store, content: memoryview) -> int:
        raise OSError(28, "No space left on device")

    source, store = Counted((4, 3, 5)), Store(str(tmp_path))
    parts = ScratchParts(LocalParts(source), store)
    next(iter(parts))
    monkeypatch.setattr(Store, "_write", no_room)
    assert list(parts.map(total)) == list(parts.map(total))
    assert source.n_readings == 3
    assert store.blocks is None
    assert store.file is not None
    assert store.file.seek(0, 2) == 0  # nothing of what was written before takes room


def test_room_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setsquare.rows.scratch.SPARE", 2**62)
    source, store = Counted((4, 3)), Store(str(tmp_path))
    parts = ScratchParts(LocalParts(source), store)
    assert list(parts.map(total)) == list(parts.map(total))
    assert store.is_full
    assert store.file is not None
    assert store.file.seek(0, 2) == 0


def test_a_fit_is_the_same_with_and_without(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 1))
    Z = X @ rng.normal(size=(1, 3)) + rng.normal(size=(900, 3))
    y = (rng.random(900) < 1.0 / (1.0 + np.exp(-Z[:, 0]))).astype(float)
    table = pd.DataFrame(np.column_stack([Z, X, y]), columns=["a", "b", "c", "x", "y"])
    batches = [table[:400], table[400:]]
    found = [
        sq.OrthogonalGLMClassifier(protected=["x"]).fit(sq.Stream(batches, scratch=scratch), y="y").coef_
        for scratch in (False, tmp_path)
    ]
    np.testing.assert_array_equal(*found)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no folder"):
        sq.Stream([np.ones((2, 2))], scratch=tmp_path / "nowhere")
