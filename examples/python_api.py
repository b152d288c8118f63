"""The same round as `fedopal-secure simulate`, from Python."""

from __future__ import annotations

from fedopal_secure.data.datasets import load_dataset
from fedopal_secure.federation.config import PromptSettings, SimulationConfig
from fedopal_secure.runtimes.simulation import simulate

config = SimulationConfig(
    dataset="digits",
    train_limit=400,
    clients=6,
    prompts=PromptSettings(mode="none"),
    drop=("upload:1",),
)
outcome = simulate(config)
print(f"accuracy {outcome.result.accuracy:.2%} from {len(outcome.result.sessions[0].survivors)} survivors")
print(f"difference of the masked sum from the plain sum: {outcome.result.exact.max_abs_difference}")
images = load_dataset("digits", seed=0).test.images[:3]
for scores in outcome.model.predict(images):
    print("predicted", outcome.model.classes[scores.argmax()])
