"""A machine whose memory has shadows: a byte of a buffer's `written` is 0 where nobody wrote, 0xFF where a defined
value was stored, and else the origin of the undefined one that was."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirc.device.copies import Copy
from mlirc.device.machine import Machine
from mlirc.device.memory import Buffer, MemRef, gather, scatter
from mlirc.device.numbers import UNSIGNED
from mlirc.device.shadows.origins import DEFINED, Shadows


class ShadowMachine(Machine):
    """`seen`: the shadow of what the operation under way has read [blocks or 1, threads or 1, elements], None: all of
    it is defined. `pattern`: a byte to read in place of undefined ones. `storing`: the shadow of what it stores."""

    shadows: Shadows

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.seen: np.ndarray | None = None
        self.pattern: int | None = None
        self.storing: np.ndarray | None = None
        self.through = False  # whether it stores what it has just loaded
        self.accumulator: np.ndarray = DEFINED  # the shadow of a product's accumulator
        self.product: np.ndarray | None = None  # and that of its result
        self._unknown: np.ndarray | None = None  # which bytes the last load found undefined, as words of 0xFF
        self._last: tuple | None = None  # the memref, addresses and threads of the last load
        self._matrices: list[np.ndarray] = []  # the shadows of a product's operands
        self._arriving: list[tuple[Buffer, np.ndarray, int, np.ndarray]] = []  # of cp.asyncs under way

    # -- memory

    def load(self, ref: MemRef, indices: list, width: int, align: int, mask, op, log: bool = True) -> np.ndarray:
        self._unknown = None
        out = super().load(ref, indices, width, align, mask, op, log)
        if self.pattern is None or self._unknown is None:
            return out
        fill = np.frombuffer(bytes([self.pattern]) * ref.item, dtype=out.dtype)[0]
        return (out & ~self._unknown) | (fill & self._unknown)

    def _check_read(self, ref: MemRef, address, width: int, fits: bool, mask, op) -> None:
        super()._check_read(ref, address, width, fits, mask, op)
        self._last = ref, address, mask, fits
        if ref.buffer.written is None:
            return
        known = np.ascontiguousarray(gather(ref.buffer, "written", address, ref.item, width, fits))
        if known.min() == np.iinfo(known.dtype).max:
            return
        raw = known.view(np.uint8).reshape(*known.shape, ref.item)
        unknown = np.where(raw == 0xFF, 0, 0xFF).astype(np.uint8)
        self._unknown = unknown.reshape(*known.shape[:-1], -1).view(known.dtype)
        origin = np.where(raw == 0xFF, 0, np.where(raw == 0, self.shadows.number(op), raw)).max(axis=-1)
        if mask is not None:
            origin = np.where(np.asarray(mask)[..., None], origin, 0)
        if origin.any():
            origin = origin.astype(np.uint8)
            self.seen = origin if self.seen is None or self.through else np.maximum(self.seen, origin)

    def store(self, ref: MemRef, indices: list, value: np.ndarray, align: int, mask, op, log: bool = True) -> None:
        super().store(ref, indices, value, align, mask, op, log)
        shadow = self.seen if self.through else self.storing
        if shadow is None:
            return
        width = value.shape[-1]
        address, mask, fits = self._address(ref, indices, width, align, mask, True, op)
        if (bad := self.active(mask, shadow.any(axis=-1))) is not None:
            chosen = self.lanes(self.full(bad))
            full = np.broadcast_to(shadow, (*shadow.shape[:2], width))
            self._mark(ref.buffer, self.compress(address, chosen), self.compress(full, chosen), ref.item, fits)
            self.shadows.stored(self, ref.buffer, bad, shadow.max(axis=-1), op)

    def changed(self, shadow: np.ndarray, op) -> None:
        """An atomic operation has put undefined values where it has just read."""
        ref, address, mask, fits = self._last  # type: ignore[misc]
        if (bad := self.active(mask, shadow != 0)) is not None:
            chosen = self.lanes(bad)
            self._mark(
                ref.buffer, self.compress(address, chosen), self.compress(shadow, chosen)[:, None], ref.item, fits
            )
            self.shadows.stored(self, ref.buffer, bad, shadow, op)

    @staticmethod
    def _mark(buffer: Buffer, address: np.ndarray, shadow: np.ndarray, item: int, fits: bool) -> None:
        """Marks elements [n, width] at addresses [n] as undefined, where they have a shadow."""
        if buffer.written is None:
            buffer.written = np.full(len(buffer.data), 0xFF, np.uint8)
        each = np.where(shadow, shadow, 0xFF).astype(UNSIGNED[item]) * (np.iinfo(UNSIGNED[item]).max // 255)
        scatter(buffer, "written", address, np.ascontiguousarray(each.astype(UNSIGNED[item])), item, fits)

    def write(self, buffer: Buffer, address: np.ndarray, words: np.ndarray, item: int, fits: bool) -> None:
        super().write(buffer, address, words, item, fits)
        if not self._arriving:
            return
        cells = (address[:, None] + np.arange(words.shape[1])).ravel()
        left = []
        for entry in self._arriving:
            to, elements, size, shadow = entry
            here = np.isin(elements, cells) if to is buffer and size == item else np.zeros(len(elements), bool)
            self._mark(buffer, elements[here], shadow[here, None], item, False) if here.any() else None
            if not here.all():
                left.append((to, elements[~here], size, shadow[~here]))
        self._arriving = left

    def copied(self, copy: Copy) -> None:
        """Notes the shadow of what a cp.async has read, for when it arrives."""
        if self.seen is None:
            return
        width = copy.words.shape[1]
        shadow = self.compress(np.broadcast_to(self.seen, (*self.seen.shape[:2], width)), copy.threads)
        elements = copy.address[:, None] + np.arange(width)
        chosen = shadow != 0
        if chosen.any():
            self._arriving.append((copy.target.buffer, elements[chosen], copy.target.item, shadow[chosen]))

    # -- products of warpgroups

    def taken(self, buffer: Buffer, shape: tuple, places: list[tuple[np.ndarray, np.ndarray]], op) -> None:
        assert buffer.written is not None
        matrix = np.zeros(shape, np.uint8)
        for chosen, byte in places:
            raw = buffer.written[byte]
            shadow = np.where(raw == 0xFF, 0, np.where(raw == 0, self.shadows.number(op), raw))
            matrix[chosen] = shadow.max(axis=-1)
        self._matrices.append(matrix)

    def sent(self, buffer: Buffer, byte: np.ndarray, lone: np.ndarray, op) -> None:
        assert buffer.written is not None
        raw = buffer.written[byte]
        shadow = np.where(raw == 0xFF, 0, np.where(raw == 0, self.shadows.number(op), raw))
        if shadow.any():
            self.shadows.complain(self, lone, np.full((1, 1), shadow.max()), "copies what is to be read by others", op)

    def fetched(self, buffer: Buffer, byte: np.ndarray, op) -> np.ndarray | None:
        if buffer.written is None or (buffer.written[byte] == 0xFF).all():
            return None
        raw = buffer.written[byte]
        return np.where(raw == 0, np.uint8(self.shadows.number(op)), raw)

    def combined(self, buffer: Buffer, byte: np.ndarray, lone: np.ndarray, op) -> None:
        shadow = self.fetched(buffer, byte, op)
        super().combined(buffer, byte, lone, op)
        if shadow is not None and buffer.written is not None:
            buffer.written[byte] = shadow
            for number in np.unique(shadow[shadow != 0xFF]):
                self.shadows.stored(self, buffer, lone, np.full((1, 1), number), op)

    def computed(self, p: Any, result: np.ndarray, blocks: np.ndarray, lanes: np.ndarray) -> None:
        rows, columns = np.zeros((len(blocks), 64), np.uint8), np.zeros((len(blocks), p.n), np.uint8)
        if len(self._matrices) == 2:
            rows = self._matrices[0].max(axis=2)
        if self._matrices:
            columns = self._matrices[-1].max(axis=2)
        self._matrices = []
        grid = np.maximum(rows[:, :, None], columns[:, None, :]).astype(np.uint8)
        shadow = p.fragments(grid).reshape(*lanes.shape, result.shape[-1], -1).max(axis=-1)
        if p.adds and self.accumulator is not DEFINED:
            full = np.broadcast_to(self.accumulator, result.shape)
            shadow = np.maximum(shadow, full[blocks, lanes])
        if self.product is None:
            self.product = np.zeros(result.shape, np.uint8)
        self.product[blocks, lanes] = shadow
