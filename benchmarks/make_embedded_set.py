"""Makes the images that come with the package: a part of Fashion-MNIST, every class in equal number.

python benchmarks/make_embedded_set.py DIRECTORY_OF_IDX_FILES
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np

from layermerge.data.readers import EMBEDDED, read_idx
from layermerge.data.split import subset

COUNTS = {"train": 11_000, "test": 1_500}
FILES = {"train": "train", "test": "t10k"}


def make(source: Path, target: Path) -> None:
    """An .npz like any other, but packed with LZMA, which numpy reads too: a seventh more images in the same space."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
        for part, count in COUNTS.items():
            pixels = read_idx(source / f"{FILES[part]}-images-idx3-ubyte", 3)
            labels = read_idx(source / f"{FILES[part]}-labels-idx1-ubyte", 1)
            chosen = subset(labels.astype(np.int64), count, np.random.default_rng(0))
            for name, array in ((f"x_{part}", pixels[chosen, ..., None]), (f"y_{part}", labels[chosen])):
                # A fixed date: the same images give the same file.
                entry = zipfile.ZipInfo(f"{name}.npy", (2017, 8, 25, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_LZMA
                with archive.open(entry, "w") as stream:
                    np.lib.format.write_array(stream, array, allow_pickle=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make(Path(sys.argv[1]), EMBEDDED)
    print(f"{EMBEDDED}: {EMBEDDED.stat().st_size / 1e6:.2f} MB")
