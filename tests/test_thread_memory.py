"""What a thread of the server costs before it does anything."""

from __future__ import annotations

import struct

import pytest

from loopback import sanitized

SEGMENT_TLS = 7  # of an ELF file's program headers


def test_thread_local_variables_take_less_than_a_page(program):
    """Each thread has all of the program's from its start, zeroed: megabytes of them for one engine were half of what a
    small server took."""
    if sanitized(program):
        pytest.skip("a sanitizer has thread-local variables of its own")
    text = program.read_bytes()
    assert text[:5] == b"\x7fELF\x02"  # of 64 bits
    (at,), (size, count) = struct.unpack_from("<Q", text, 32), struct.unpack_from("<HH", text, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", text, at + i * size) for i in range(count)]
    assert len(headers) > 4
    assert sum(header[6] for header in headers if header[0] == SEGMENT_TLS) < 4096
