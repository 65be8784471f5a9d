"""The one place that imports torchvision, which does not import beside every torch."""

from types import ModuleType

import torch

_schemas: list[torch.library.Library] = []  # must stay referenced


def datasets() -> ModuleType:
    """torchvision.datasets.

    torchvision registers shapes for two compiled operators, nms and qnms, at import; a build without them
    (torchvision 0.28 beside a CPU torch) fails there, though its datasets are plain Python. Declaring the two
    is enough.
    """
    try:
        import torchvision.datasets
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _schemas.append(library)
        import torchvision.datasets
    return torchvision.datasets
