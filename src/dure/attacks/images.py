"""Inputs as images, and where a trigger lies on them."""

from math import prod

import numpy as np

from dure.errors import ConfigError, DataError

#: (row, column, height, width) in pixels
Rectangle = tuple[int, int, int, int]


def checked_patches(attack: object, patches: tuple[Rectangle, ...]) -> None:
    """Refuse what is no rectangle of pixels.

    Raises:
        ConfigError: it isn't.
    """
    for patch in patches:
        whole = len(patch) == 4 and all(isinstance(x, int | np.integer) for x in patch)
        if not whole or min(patch[2:]) < 1:
            raise ConfigError(
                f"{type(attack).__name__} has the patch {tuple(patch)!r}: it must be (row, column, height, width) in "
                "pixels, the last two at least 1."
            )


def window(attack: object, inputs: np.ndarray, shape: tuple[int, ...] | None, patch: Rectangle) -> np.ndarray:
    """(n, height, width, C): the pixels of a patch, as a view of the inputs, which must be C-contiguous.

    Args:
        attack: for messages.
        inputs: (n, …).
        shape: (H, W) or (H, W, C) of the images; None: as the inputs have it.
        patch: a negative row or column counts from the bottom or the right.

    Raises:
        DataError: the inputs are no images, or not without being told their shape, or (C, H, W).
        ConfigError: the patch doesn't lie within them.
    """
    found = inputs.shape[1:] if shape is None else shape
    if len(found) not in (2, 3) or prod(found) != prod(inputs.shape[1:]):
        raise DataError(
            f"{type(attack).__name__}(shape={shape!r}) can't see inputs of shape {list(inputs.shape[1:])} as images: "
            "they must be (H, W) or (H, W, C), or flat with shape=(H, W) or (H, W, C) given."
        )
    if shape is None and len(found) == 3 and found[0] <= 4 < found[2]:
        raise DataError(
            f"{type(attack).__name__} meets inputs of shape {list(found)}, which look as if their channels came first: "
            "a trigger is put on (H, W, C). Move the axis (numpy.moveaxis(x, 1, -1)), or say shape=(H, W, C) if these "
            f"are {found[0]} rows."
        )
    height, width, *channels = found
    images = inputs.reshape(len(inputs), height, width, *channels or (1,))
    row = patch[0] + height if patch[0] < 0 else patch[0]
    column = patch[1] + width if patch[1] < 0 else patch[1]
    if not (0 <= row <= height - patch[2] and 0 <= column <= width - patch[3]):
        raise ConfigError(
            f"{type(attack).__name__} has a patch of {patch[2]}×{patch[3]} pixels at row {patch[0]}, column "
            f"{patch[1]}: it doesn't lie within images of {height}×{width}."
        )
    return images[:, row : row + patch[2], column : column + patch[3]]


def write(attack: object, pixels: np.ndarray, values: np.ndarray) -> None:
    """Write values (), (C,), or (height, width, 1 or C) on the pixels of a patch (n, height, width, C).

    Raises:
        ConfigError: they have another number of channels, or the dtype of the pixels can't hold them.
    """
    if values.ndim and values.shape[-1] not in (1, pixels.shape[-1]):
        raise ConfigError(
            f"{type(attack).__name__} writes {values.shape[-1]} channels, and the images have {pixels.shape[-1]}."
        )
    if pixels.dtype.kind != "f":
        limits = np.iinfo(pixels.dtype) if pixels.dtype.kind in "iu" else None
        whole = limits is not None and (values == np.round(values)).all()
        if limits is None or not whole or values.min() < limits.min or values.max() > limits.max:
            raise ConfigError(
                f"{type(attack).__name__} writes values from {values.min():g} to {values.max():g}, and pixels of "
                f"{pixels.dtype} can't hold them: give the images as float32, or other values."
            )
    pixels[...] = values.astype(pixels.dtype)
