"""Import torchvision, also beside a build of torch for which it fails to import."""

from types import ModuleType

from torch import library

# A library's operators are removed with the object, so it has to stay referenced.
_schemas: list[library.Library] = []


def torchvision() -> ModuleType:
    """Return the module torchvision, with its datasets and models.

    At import torchvision registers shapes for two compiled operators, nms and qnms. A build without them (torchvision
    0.28 beside a CPU torch) fails there, although its datasets and models are plain Python. Declaring the two operators
    first is enough.
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
