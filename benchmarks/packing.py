"""How full packs get, and how long planning them takes, beside first-fit and the bound.

    python benchmarks/packing.py [--rows 1000000]

First-fit decreasing goes through the rows one by one; a segment tree finds the first pack with
room. No plan can have fewer packs than the bound: all tokens by the capacity, or one pack for each
row that is longer than half of it, whichever is more.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from tunecli.data import plan_packs


def lengths_of(rows: int) -> dict[str, tuple[np.ndarray, int]]:
    """Return row lengths, int64 [rows], and the capacity, by the distribution's name."""
    rng = np.random.default_rng(0)

    def lognormal(median: float, sigma: float, limit: int) -> np.ndarray:
        drawn = np.exp(rng.normal(np.log(median), sigma, rows))
        return np.clip(drawn, 2, limit).astype(np.int64)

    bimodal = np.where(
        rng.random(rows) < 0.5, rng.integers(50, 200, rows), rng.integers(1500, 2500, rows)
    )
    return {
        "lognormal, mean 600": (lognormal(450, 0.8, 4096), 4096),
        "lognormal, wide": (lognormal(200, 1.0, 8192), 8192),
        "bimodal": (bimodal, 4096),
        "uniform": (rng.integers(2, 4097, rows), 4096),
        "near maximum": (rng.integers(3500, 4097, rows), 4096),
    }


def first_fit(lengths: np.ndarray, capacity: int) -> int:
    """Return the packs that first-fit decreasing needs."""
    size = 1 << (len(lengths) - 1).bit_length()
    free = [capacity] * (2 * size)  # free[k]: the most room in any pack below node k.
    used = 0
    for length in np.sort(lengths)[::-1].tolist():
        node = 1
        while node < size:
            node = 2 * node if free[2 * node] >= length else 2 * node + 1
        used = max(used, node - size + 1)
        free[node] -= length
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return used


def main() -> None:
    """Print one line for each distribution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--first-fit-rows", type=int, default=200_000)
    options = parser.parse_args()
    print(f"{'lengths':22}{'rows':>10}{'seconds':>9}{'full':>9}{'bound':>9}{'first-fit':>11}")
    for rows in (options.rows, options.first_fit_rows):
        for name, (lengths, capacity) in lengths_of(rows).items():
            start = time.perf_counter()
            _, offsets = plan_packs(lengths, capacity, np.random.default_rng(1))
            seconds = time.perf_counter() - start
            total = int(lengths.sum())
            bound = max(-(-total // capacity), int((lengths > capacity // 2).sum()))
            fit = ""
            if rows <= options.first_fit_rows:
                fit = f"{total / capacity / first_fit(lengths, capacity):.3%}"
            full = total / capacity / (len(offsets) - 1)
            best = total / capacity / bound
            print(f"{name:22}{rows:>10,}{seconds:>9.2f}{full:>9.3%}{best:>9.3%}{fit:>11}")


if __name__ == "__main__":
    main()
