"""How large unsigned bytes may be beside a constant: as large as two products fit 16 bits, and no larger."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.errors import VerifyError
from ourcc.ir.making import making
from ourcc.ir.pairing import LARGEST, Pairing
from ourcc.ir.types import f32, i8, u8


@pytest.mark.parametrize("largest", [3, 63, 64, 100, 128])
@pytest.mark.parametrize(("shape", "along"), [((32, 19), (0, 1)), ((19, 32), (1, 0)), ((2, 3, 32, 19), (2, 3)), ((19, 2, 32), (2, 0))])
def test_a_limit_is_the_largest_byte_that_fits(shape: tuple[int, ...], along: tuple[int, int], largest: int) -> None:
    pairing = Pairing(8, 4, along)
    codes = np.random.default_rng(largest).integers(-largest, min(largest, 127) + 1, shape).astype(np.int8)
    limits = pairing.of(codes)
    assert limits.dtype == np.uint8 and limits.shape == pairing.shape(shape)
    rows = np.moveaxis(np.abs(codes.astype(int)), along, (-2, -1)).reshape(-1, 32, 19)
    for outer, part in enumerate(np.moveaxis(limits, along, (-2, -1)).reshape(-1, 4, 5)):
        for (stretch, panel), limit in np.ndenumerate(part):
            block = rows[outer, 8 * stretch : 8 * stretch + 8, 4 * panel : 4 * panel + 4]
            most = max(block[pair : pair + 2].sum(0).max() for pair in range(0, 8, 2))
            assert int(limit) * most <= LARGEST and (limit == 255 or (int(limit) + 1) * most > LARGEST)


def test_codes_of_seven_bits_have_no_limit() -> None:
    codes = np.full((16, 8), -64, np.int8)
    assert (Pairing(16, 8, (0, 1)).of(codes) == 255).all()
    codes[3, 2] = -65
    assert (Pairing(16, 8, (0, 1)).of(codes) == 254).all()
    assert (Pairing(16, 8, (0, 1)).of(np.full((16, 8), -128, np.int8)) == 127).all()


def test_what_is_no_pairing_is_refused() -> None:
    for terms, columns, along in ((3, 8, (0, 1)), (0, 8, (0, 1)), (4, 0, (0, 1)), (4, 8, (1, 1)), (4, 8, (-1, 1))):
        with pytest.raises(VerifyError, match=r"^pairing "):
            Pairing(terms, columns, along)
    with pytest.raises(VerifyError, match=r"pairing along the dimensions \[0\], expected one of terms and another of columns"):
        making("paired", [4, 8], [0])
    with pytest.raises(VerifyError, match="expected stretches of 4 along dimension 0"):
        Pairing(4, 8, (0, 1)).shape((6, 8))
    with pytest.raises(VerifyError, match="expected stretches"):
        Pairing(4, 8, (0, 2)).shape((8, 8))
    assert Pairing(4, 8, (0, 1)).dtype(i8) == u8
    with pytest.raises(VerifyError, match="pairing of f32, expected i8"):
        Pairing(4, 8, (0, 1)).dtype(f32)
