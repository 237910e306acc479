"""CRC-32C, the checksum inside TensorFlow's files, fast enough in numpy for hundreds of megabytes.

The remainder is linear: the data is cut into lanes of equal length, all lanes advance together byte by byte, and two
neighbours are joined by moving the left one on by the length of the right one, again and again.
"""

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_LANE = 2048


def _bytes_table() -> np.ndarray:
    rows = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        rows = np.where(rows & 1, rows >> 1 ^ np.uint32(_POLYNOMIAL), rows >> 1)
    return rows


_TABLE = _bytes_table()


def crc32c(data: bytes | np.ndarray) -> int:
    array = np.frombuffer(data, np.uint8).copy() if isinstance(data, bytes) else data.copy()
    if len(array) < 4:
        return _plain(array)
    array[:4] ^= 0xFF  # the register begins with ones; from here on zeros in front change nothing
    num_lanes = 1 << max(len(array) // _LANE, 1).bit_length() - 1
    length = -(-len(array) // num_lanes)
    padded = np.zeros(num_lanes * length, np.uint8)
    padded[len(padded) - len(array) :] = array
    registers = np.zeros(num_lanes, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(num_lanes, length).T):
        registers = _TABLE[(registers ^ column) & 0xFF] ^ registers >> 8
    move = _zeros(length)
    while len(registers) > 1:
        registers = _apply(move, registers[::2]) ^ registers[1::2]
        move = _apply(move, move)
    return int(registers[0]) ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """How the files store it: turned and moved, so that a checksum of checksums is not a trivial number."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _plain(array: np.ndarray) -> int:
    register = 0xFFFFFFFF
    for byte in array.tolist():
        register = int(_TABLE[(register ^ byte) & 0xFF]) ^ register >> 8
    return register ^ 0xFFFFFFFF


def _zeros(count: int) -> np.ndarray:
    """What `count` zero bytes make of each of the register's 32 bits."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    step, total = _TABLE[bits & 0xFF] ^ bits >> 8, bits
    while count:
        total = _apply(step, total) if count & 1 else total
        step, count = _apply(step, step), count >> 1
    return total


def _apply(move: np.ndarray, registers: np.ndarray) -> np.ndarray:
    out = np.zeros_like(registers)
    for bit in range(32):
        out ^= np.where(registers >> np.uint32(bit) & 1, move[bit], np.uint32(0))
    return out
