"""A backbone of your own: any transformer that has a class token, in one class, and a round with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedopal_secure.federation.config import PromptSettings, SimulationConfig, TuningSettings
from fedopal_secure.runtimes.simulation import Simulation
from fedopal_secure.vision.backbone import Backbone, fingerprint
from fedopal_secure.vision.preprocessing import Preprocessing


class MyVit(Backbone):
    """Two blocks of torch over the 16 patches of a 16 x 16 grey image. Load your weights where these are random."""

    def __init__(self) -> None:
        # What the network was trained to see. `preprocess` and `normalise` are made of it.
        pixels = Preprocessing(16, mean=(0.5,), std=(0.5,), interpolation="bilinear")
        super().__init__(pixels)
        torch.manual_seed(0)
        self.patches = nn.Conv2d(1, 64, kernel_size=4, stride=4)
        self.class_token = nn.Parameter(torch.randn(1, 1, 64))
        self.position = nn.Parameter(torch.randn(1, 1 + 16, 64))
        block = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(64)
        self.embed_dim = self.feature_dim = 64
        # The name and the hash that all participants must share: weights, and all that the weights do not show.
        self.id = "my-vit"
        self.hash = fingerprint(self.state_dict(), {"heads": 4, "norm_first": True, "preprocessing": str(pixels)})
        self.freeze()

    def embed(self, images: Tensor) -> Tensor:
        """Images (n, 1, 16, 16) to tokens (n, 17, 64), class token first, each with its position."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(images), 1, 64), patches], dim=1) + self.position

    def encode(self, tokens: Tensor) -> Tensor:
        """Tokens (n, any number, 64), with or without prompts, to features (n, 64)."""
        return self.norm(self.blocks(tokens)[:, 0])


backbone = MyVit()
prompts = PromptSettings(mode="local", tokens=4, tuning=TuningSettings(epochs=2))
config = SimulationConfig(dataset="digits", train_limit=200, clients=5, alpha=1.0, prompts=prompts)
simulation = Simulation(config, backbone=backbone)
outcome = simulation.run()
print(f"backbone {outcome.model.backbone}, hash {backbone.hash[:12]}, features of {backbone.feature_dim}")
print(f"accuracy {outcome.result.accuracy:.2%} on {outcome.result.test_images} digits")

# A released model names its backbone; one that `load_backbone` does not know is handed to it.
images = simulation.dataset.test.images[:3, ..., 0]
print("predicted", [outcome.model.classes[scores.argmax()] for scores in outcome.model.predict(images, backbone)])
