"""What pooled data would have given: the head and the prompts of one party that holds everybody's images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.params import Task
from fedopal_secure.data.datasets import ImageSet
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.federation.client import Report
from fedopal_secure.federation.config import HeadSettings, TuningSettings
from fedopal_secure.federation.heads import solve_exact
from fedopal_secure.federation.private_data import PrivateData, compute_statistics
from fedopal_secure.federation.vectors import feature_grid
from fedopal_secure.model import Model, evaluate
from fedopal_secure.runtimes.result import Baseline
from fedopal_secure.solver.ridge import RidgeHead
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.features import Extract
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts


@dataclass(frozen=True)
class Centre:
    """One party with the test images, which computes as the clients and the server of a round do, without noise."""

    backbone: Backbone
    task: Task
    public_map: FeatureMap | None
    extract: Extract
    head: HeadSettings
    test: ImageSet
    report: Report

    def scores(self, head: RidgeHead, prompts: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Scores of the test images, (n, classes), by a head under some prompts."""
        progress = partial(self.report, "evaluation")
        features = self.extract(self.backbone, np.asarray(self.test.images), prompts, progress=progress)
        mapped = features if self.public_map is None else self.public_map.apply(features)
        return head.scores(feature_grid(self.task).normalised(mapped))

    def accuracy(self, head: RidgeHead, prompts: NDArray[np.float32] | None) -> float:
        """Accuracy of a head under some prompts on the test images."""
        return evaluate(self.scores(head, prompts), self.test.labels, self.test.classes).accuracy


def centralised(centre: Centre, data: PrivateData, prompts: NDArray[np.float32] | None) -> RidgeHead:
    """The head that one party holding all of `data` would compute under `prompts`, without noise."""
    progress = partial(centre.report, "features")
    statistics = compute_statistics(
        centre.backbone, data, centre.task, prompts, centre.public_map, extract=centre.extract, progress=progress
    )
    return solve_exact(centre.task, statistics, centre.head)


def compare_with_centralised(centre: Centre, model: Model, pooled: PrivateData) -> tuple[float, bool]:
    """Accuracy of the head computed centrally from pooled data under the model's prompts, and whether it is the
    model's own, bit for bit."""
    head = centralised(centre, pooled, model.prompts)
    identical = np.array_equal(head.weights, model.head.weights) and np.array_equal(
        head.intercept, model.head.intercept
    )
    return centre.accuracy(head, model.prompts), bool(identical)


def baseline(centre: Centre, model: Model, pooled: PrivateData, tuning: TuningSettings, seed: int) -> Baseline:
    """All baselines of a released model; where clients tune prompts, `tuning` and `seed` are for pooled tuning."""
    pooled_tuning = None
    if centre.task.prompt_mode in ("local", "two-phase"):
        tuned = _tune(centre, pooled, tuning, seed)
        pooled_tuning = centre.accuracy(centralised(centre, pooled, tuned), tuned)
    accuracy, identical = compare_with_centralised(centre, model, pooled)
    return Baseline(
        no_prompt=centre.accuracy(centralised(centre, pooled, None), None),
        centralised=accuracy,
        pooled_tuning=pooled_tuning,
        head_identical=identical,
    )


def _tune(centre: Centre, pooled: PrivateData, tuning: TuningSettings, seed: int) -> NDArray[np.float32]:
    task = centre.task
    return tune_prompts(
        centre.backbone,
        pooled.images,
        pooled.labels,
        classes=len(task.classes),
        initial=initial_prompts(task.prompt_source, task.prompt_tokens, task.prompt_dimension),
        config=TuningConfig(tokens=task.prompt_tokens, **tuning.model_dump()),
        seed=seed,
        progress=partial(centre.report, "tuning"),
    )
