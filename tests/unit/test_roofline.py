"""The arithmetic of the roofline; the measurement itself runs in notebook 03."""

import pytest

from helpers.roofline import Decode, Peaks, draw

PEAKS = Peaks(bandwidth=10e9, arithmetic=100e9)


@pytest.mark.parametrize("intensity, limit", [(0.5, 5e9), (10, 100e9), (64, 100e9)])
def test_the_lower_of_two_limits_holds(intensity, limit):
    assert PEAKS.limit(intensity) == limit


def test_a_decode_reads_every_weight_once_for_the_whole_batch():
    alone, many = (
        Decode(batch, rate, parameters=10**6, weight_bytes=4 * 10**6) for batch, rate in ((1, 1000), (64, 9000))
    )
    assert alone.intensity == 0.5 and many.intensity == 32 and alone.reached == 2e9
    picture = draw(PEAKS, [alone, many])
    assert "batch of 1: 2.0 GFLOP/s at 0.5 operations a byte, 40% of the limit there (memory)" in repr(picture)
    assert "18% of the limit there (arithmetic)" in repr(picture) and picture._repr_png_().startswith(b"\x89PNG")
