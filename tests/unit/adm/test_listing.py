"""The order of listings: as glibc's qsort makes it, whichever way of sorting is taken."""

import random

import pytest

from uvs.adm import listing


@pytest.mark.parametrize("width", [10, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("lengths", [(3,), (2, 3)])
def test_a_sort_is_a_merge_sort(width, lengths):
    """Where no two differ by 2^31 Python's own sort is taken, which gives the same."""
    rnd = random.Random(width)
    for _ in range(100):
        rows = [
            ([rnd.choice((0, width, rnd.randint(0, width))) for _ in range(rnd.choice(lengths))], number)
            for number in range(rnd.randint(0, 9))
        ]
        keyed = [(row[0], row) for row in rows]
        assert listing.merge_sort(rows, lambda row: row[0]) == [row for _, row in listing._merged(keyed)]


def test_an_order_that_wraps_goes_round():
    assert listing.merge_sort([0, 2**31 + 1], lambda n: [n]) == [2**31 + 1, 0]
    assert listing.merge_sort([2**31 - 1, 0], lambda n: [n]) == [0, 2**31 - 1]
