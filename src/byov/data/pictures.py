"""Picture files as torchvision's ImageFolder reads them: the first frame, without alpha, as it lies in the file.

What eight bits cannot hold is scaled by its type: 16 bits to their upper eight, floating-point values from [0, 1].
"""

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2.functional import to_dtype

LONGEST = 8
"""Of a picture that is longer than so many times its shorter side, the middle is kept, before anything is enlarged."""


def read_picture(path: str, image_size: int, mode: str, crop: float = 1.0) -> Image.Image:
    """Decode a file in `mode`, "RGB" or "L", scale the shorter side to image_size / crop, cut out the centre.

    Pillow's limit on the number of pixels holds; what cannot be read raises whatever its decoder raises.
    """
    side = round(image_size / crop)
    with Image.open(path) as file:
        file.draft(mode, (side, side))  # a JPEG need not be decoded at more than the size asked for
        image = _eight_bits(file).convert(mode)
    longest = LONGEST * min(image.size)
    if max(image.size) > longest:
        image = _centre(image, min(image.width, longest), min(image.height, longest))
    scale = side / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    return _centre(image.resize((width, height), Image.Resampling.BICUBIC), image_size, image_size)


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _eight_bits(file: Image.Image) -> Image.Image:
    """Return pictures of 16 bits and of floats in eight bits, others as they are; Pillow would cut them off at 255."""
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM")):
        bits = getattr(file, "tag_v2", {}).get(258, (16,))[0]  # a TIFF may hold 12
        values = torch.from_numpy(np.asarray(file).astype(np.int32) << (31 - bits))
    elif file.mode == "F":
        values = torch.from_numpy(np.array(file))
        low, high = (float(value) for value in values.aminmax())
        if not (low >= 0.0 and high <= 1.0):  # written so that NaN fails too
            raise ValueError(f"floating-point values from {low:.4g} to {high:.4g}, where 0 to 1 are expected")
    elif file.mode == "I":
        raise ValueError("whole numbers of 32 bits, whose scale is not known")
    else:
        return file
    return Image.fromarray(to_dtype(values, torch.uint8, scale=True).numpy())
