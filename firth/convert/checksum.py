"""CRC-32C, the checksum inside TensorFlow's files, fast enough in numpy for hundreds of megabytes.

A CRC is linear over bits. So the data is cut into lanes of equal length, and all lanes advance together byte by byte.
Then neighbouring lanes are joined in pairs, again and again: the left register is advanced by as many zero bytes as the
right lane is long, and xor adds the right register.
"""

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_LANE = 2048
_ALL_ONES = 0xFFFFFFFF


def _make_byte_table() -> np.ndarray:
    """For each value of a byte: what eight steps of the shift register make of it."""
    rows = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        shifted = rows >> 1
        rows = np.where(rows & 1, shifted ^ np.uint32(_POLYNOMIAL), shifted)
    return rows


_TABLE = _make_byte_table()


def crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C of bytes, or of an array of uint8."""
    if isinstance(data, bytes):
        data = np.frombuffer(data, np.uint8)
    array = data.copy()
    if len(array) < 4:
        return _crc_bytewise(array)
    # The register begins as all ones. Xor of the first four bytes does the same to a register of zeros,
    # and a register of zeros stays zero over any number of zero bytes in front.
    array[:4] ^= 0xFF
    num_lanes = 1 << max(len(array) // _LANE, 1).bit_length() - 1  # a power of two, so that lanes can be paired
    lane_length = -(-len(array) // num_lanes)
    padded = np.zeros(num_lanes * lane_length, np.uint8)
    padded[len(padded) - len(array) :] = array
    registers = np.zeros(num_lanes, np.uint32)
    lanes_by_byte = np.ascontiguousarray(padded.reshape(num_lanes, lane_length).T)
    for column in lanes_by_byte:
        registers = _TABLE[(registers ^ column) & 0xFF] ^ registers >> 8
    advance = _advance_by_zeros(lane_length)
    while len(registers) > 1:
        registers = _apply(advance, registers[::2]) ^ registers[1::2]
        advance = _apply(advance, advance)  # the joined lanes are twice as long
    return int(registers[0]) ^ _ALL_ONES


def masked(crc: int) -> int:
    """The form in which the files store a checksum: rotated, plus a constant, so that nested checksums are safe."""
    rotated = crc >> 15 | crc << 17
    return (rotated + 0xA282EAD8) & _ALL_ONES


def _crc_bytewise(array: np.ndarray) -> int:
    """The plain algorithm, for data of any length."""
    register = _ALL_ONES
    for byte in array.tolist():
        register = int(_TABLE[(register ^ byte) & 0xFF]) ^ register >> 8
    return register ^ _ALL_ONES


def _advance_by_zeros(count: int) -> np.ndarray:
    """A 32 x 32 bit matrix, one uint32 for each bit of the register: the effect of `count` zero bytes."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = _TABLE[bits & 0xFF] ^ bits >> 8  # the effect of one zero byte
    total = bits  # the identity
    # Exponentiation by squaring.
    while count:
        if count & 1:
            total = _apply(power, total)
        power = _apply(power, power)
        count >>= 1
    return total


def _apply(matrix: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """The matrix times each register: the xor of the rows whose bit is set."""
    product = np.zeros_like(registers)
    for bit in range(32):
        is_set = registers >> np.uint32(bit) & 1
        product ^= np.where(is_set, matrix[bit], np.uint32(0))
    return product
