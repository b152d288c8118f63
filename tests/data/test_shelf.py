"""Every data set on the shelf ($FEDOPAL_DATA) opens, has test and training images of each class, and decodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedopal_secure.data.datasets import plan_dataset

SHELF = os.environ.get("FEDOPAL_DATA")
SETS = sorted(path.name for path in Path(SHELF).iterdir() if path.suffix in (".npz", ".tar")) if SHELF else []
NONE = pytest.param("", marks=pytest.mark.skip("FEDOPAL_DATA names no folder of data sets"))


@pytest.mark.parametrize("name", SETS or [NONE])
def test_a_data_set_opens_and_its_first_images_decode(name):
    plan = plan_dataset(name, seed=0)
    for records in (plan.train, plan.test):
        assert {record.label for record in records} == set(range(len(plan.classes)))
        image = records[0].load()
        assert image.ndim in (2, 3) and min(image.shape[:2]) >= 28
    assert plan.left_out == ()
