"""The one place that imports torchvision itself, which does not import beside every torch."""

from types import ModuleType

from torch import library

_schemas: list[library.Library] = []  # must stay referenced


def torchvision() -> ModuleType:
    """torchvision, with its datasets and models.

    It registers shapes for two compiled operators, nms and qnms, at import; a build without them (torchvision 0.28
    beside a CPU torch) fails there, though its datasets and models are plain Python. Declaring the two is enough.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        schema = library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            schema.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _schemas.append(schema)
        import torchvision
    return torchvision
