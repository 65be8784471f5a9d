"""Describe a trial's data as an MLflow dataset: checksum, shape of a sample, partition into clients."""

import json
from typing import TYPE_CHECKING

from pflsweep.records.record import Record

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

DIGEST = 36  # characters of a digest that MLflow keeps


def dataset_input(record: Record) -> "DatasetInput":
    """Return the dataset input of a record's run. MLflow keeps each dataset once, so the partition is in the tags."""
    import numpy as np
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.schema import TensorDatasetSchema
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.types import Schema, TensorSpec

    meta, counts = record.meta, record.partition
    source = CodeDatasetSource({"mlflow.source.name": f"pflsweep dataset={meta['dataset']}"})
    schema = TensorDatasetSchema(
        features=Schema([TensorSpec(np.dtype("float32"), (-1, *(meta.get("shape") or ())), "x")]),
        targets=Schema([TensorSpec(np.dtype("int64"), (-1,), "y")]),
    )
    dataset = Dataset(
        str(meta["dataset"]),
        str(meta["data_checksum"])[:DIGEST],
        source._get_source_type(),
        source.to_json(),
        json.dumps(schema.to_dict()),
        json.dumps({"classes": meta.get("classes")}),
    )
    cut = {"partition": meta["partition"], "clients": counts["client"].nunique()}
    rows = {name: int(counts[name].sum()) for name in ("train", "validation", "test") if name in counts}
    tags = {"mlflow.data.context": "training", **cut, **rows}
    return DatasetInput(dataset, [InputTag(key, str(value)) for key, value in tags.items()])
