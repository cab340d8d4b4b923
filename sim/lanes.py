"""Unpacks recorded transfers into integers. Test: ``tests/test_simulate.py``."""

import numpy as np
import numpy.typing as npt

__all__ = ["unpack_lanes"]


def unpack_lanes(data: npt.NDArray[np.uint8], lanes: int, width: int) -> npt.NDArray[np.int64]:
    """Return int64 [transfers, lanes], sign-extended.

    Parameters
    ----------
    data : uint8 [transfers, bytes], least significant byte first; lane 0 in the lowest bits
    lanes : values per transfer
    width : bits of a value, 1 to 64, two's complement
    """
    transfers = len(data)
    if width in (8, 16, 32, 64) and data.shape[1] >= lanes * width // 8:
        used = np.ascontiguousarray(data[:, : lanes * width // 8])
        return used.view(f"<i{width // 8}").astype(np.int64).reshape(transfers, lanes)
    # A value of up to 64 bits at any bit offset lies within 9 bytes.
    room = (lanes - 1) * width // 8 + 9
    padded = np.zeros((transfers, max(room, data.shape[1])), np.uint8)
    padded[:, : data.shape[1]] = data
    values = np.empty((transfers, lanes), np.int64)
    for lane in range(lanes):
        byte, shift = divmod(lane * width, 8)
        low = np.ascontiguousarray(padded[:, byte : byte + 8]).view("<u8")[:, 0]
        bits = low >> np.uint64(shift)
        if shift:
            bits = bits | (padded[:, byte + 8].astype(np.uint64) << np.uint64(64 - shift))
        top = np.uint64(64 - width)
        values[:, lane] = (bits << top).view(np.int64) >> top.astype(np.int64)
    return values
