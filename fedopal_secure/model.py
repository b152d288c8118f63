"""The released artefact: prompts, head and the facts that make them usable, in one safetensors file.

A model names the backbone that it was made for by a hash of its weights, and refuses to run on another. It carries the
head of the transcript of the round that made it, and the signature of that round's server on both.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.core.identity import SigningKey, verify
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.solver.ridge import RidgeHead

if TYPE_CHECKING:
    from fedopal_secure.vision.backbone import Backbone

FORMAT: Final = "fedopal-secure/model/v2"
SIGN_MODEL: Final = b"fedopal-secure/model/v2/sign\x00"
_DIGEST: Final = b"fedopal-secure/model/v2/digest\x00"


@dataclass(frozen=True, eq=False)
class Model:
    """A classifier: frozen backbone, prompts (float32 (M, D) or None), public feature map (or None) and linear head.

    `private_prompts` says whether the prompts were tuned on private images without differential privacy, and so are
    private themselves. `transcript` is the head of the transcript of the round that released it, `server` the identity
    that signed both, `signature` Ed25519 over them: all in hex, or empty.
    """

    head: RidgeHead
    prompts: NDArray[np.float32] | None
    classes: tuple[str, ...]
    backbone: str
    backbone_hash: bytes
    preprocessing: str
    grid: FeatureGrid
    public_map: FeatureMap | None = None
    private_prompts: bool = False
    transcript: str = ""
    server: str = ""
    signature: str = ""

    def load_backbone(self, image_size: int | None = None, device: str = "auto") -> Backbone:
        """The backbone that this model needs, on a device (`device_named`).

        Raises InputError if what loads under its name has another hash.
        """
        from fedopal_secure.vision.backbone import load_backbone

        backbone = load_backbone(self.backbone, image_size, device)
        self.check_backbone(backbone)
        return backbone

    def check_backbone(self, backbone: Backbone) -> None:
        """Raise InputError unless name, weights and preprocessing are those that the head was computed on."""
        if (backbone.id, backbone.hash, backbone.preprocessing) != (
            self.backbone,
            self.backbone_hash.hex(),
            self.preprocessing,
        ):
            raise InputError(
                f"the model was made on backbone {self.backbone!r} with hash {self.backbone_hash.hex()[:12]}, and this "
                f"is {backbone.id!r} with hash {backbone.hash[:12]}: give the same weights and --image-size "
                f"(the model reads: {self.preprocessing})"
            )
        if self.prompts is not None and self.prompts.shape[1] != backbone.embed_dim:
            raise InputError(f"the model's prompts do not fit backbone {backbone.id!r}: the file is damaged")
        if self.public_map is not None and self.public_map.features != backbone.feature_dim:
            raise InputError(f"the model's feature map does not fit backbone {backbone.id!r}: the file is damaged")

    def scores(
        self, backbone: Backbone, images: NDArray[np.uint8], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Scores, float64 (n, classes), of images that `Backbone.preprocess` has made; FedOPAL eq. 10."""
        from fedopal_secure.vision.features import extract_features

        return self.scores_of(extract_features(backbone, images, self.prompts, progress=progress))

    def scores_of(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores, float64 (n, classes), of the backbone's features (n, D) under the model's prompts."""
        mapped = features if self.public_map is None else self.public_map.apply(features)
        return self.head.scores(self.grid.normalised(mapped))

    def predict(self, images: Sequence[NDArray[np.uint8]], backbone: Backbone | None = None) -> NDArray[np.float64]:
        """Scores, float64 (n, classes), of uint8 images (h, w) or (h, w, 3) of any size."""
        backbone = backbone or self.load_backbone()
        self.check_backbone(backbone)
        return self.scores(backbone, np.stack([backbone.preprocess(image) for image in images]))

    def digest(self) -> bytes:
        """SHA-256 of the tensors and of all facts but where the model comes from, 32 bytes; the same for equal models.

        Of the facts as JSON in the order of their names, then of each tensor in the order of theirs: name, type and
        shape as JSON, and the bytes; each of these with its length in 8 bytes before it.
        """
        parts = [json.dumps(self._facts(), sort_keys=True, separators=(",", ":")).encode()]
        for name, tensor in sorted(self._tensors().items()):
            parts += [json.dumps([name, tensor.dtype.str, tensor.shape]).encode(), tensor.tobytes()]
        state = hashlib.sha256(_DIGEST)
        for part in parts:
            state.update(len(part).to_bytes(8, "big") + part)
        return state.digest()

    def signed(self, key: SigningKey, transcript: str) -> Model:
        """This model as a server releases it, under the head of its round's transcript in hex."""
        signature = key.sign(SIGN_MODEL, bytes.fromhex(transcript) + self.digest())
        return self.by(transcript, key.identity.hex(), signature.hex())

    def by(self, transcript: str, server: str, signature: str) -> Model:
        """This model with another origin."""
        return replace(self, transcript=transcript, server=server, signature=signature)

    def check_signed_by(self, identity: bytes) -> None:
        """Raise InputError unless the server of this identity, 32 bytes, released this model."""
        if self.server != identity.hex():
            who = f"it names {self.server[:12]}" if self.server else "nobody signed it"
            raise InputError(f"the model is not by the server {identity.hex()[:12]}: {who}")
        if not is_released(identity, self.transcript, self.digest(), self.signature):
            raise InputError(f"the model is not the one that {identity.hex()[:12]} signed: get it again from the round")

    def save(self, path: Path) -> None:
        """Write a safetensors file: tensors `weights`, `intercept`, `prompts`, `map.*`; everything else as metadata."""
        path.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """What `save` writes: the same bytes for equal models."""
        origin = {"transcript": self.transcript, "server": self.server, "signature": self.signature}
        facts = {name: json.dumps(value, ensure_ascii=False) for name, value in (self._facts() | origin).items()}
        content = save({name: np.ascontiguousarray(tensor) for name, tensor in self._tensors().items()}, facts)
        # The library writes metadata in an order that changes from call to call.
        header, rest = _split(content)
        text = json.dumps(json.loads(header), sort_keys=True, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + rest

    def _tensors(self) -> dict[str, NDArray[Any]]:
        tensors: dict[str, NDArray[Any]] = {"weights": self.head.weights, "intercept": self.head.intercept}
        if self.prompts is not None:
            tensors["prompts"] = self.prompts
        if self.public_map is not None:
            tensors |= {"map.centre": self.public_map.centre, "map.second_moment": self.public_map.second_moment}
            if self.public_map.basis is not None:
                tensors["map.basis"] = self.public_map.basis
        return tensors

    def _facts(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "classes": list(self.classes),
            "backbone": self.backbone,
            "backbone_hash": self.backbone_hash.hex(),
            "preprocessing": self.preprocessing,
            "feature_bound": self.grid.bound,
            "feature_bits": self.grid.bits,
            "normalise": self.grid.normalise,
            "lambda": {"rule": self.head.rule, "value": self.head.ridge},
            "private_prompts": self.private_prompts,
        }

    @classmethod
    def load(cls, path: Path) -> Model:
        """Read a file that `save` wrote; raises InputError if it is something else."""
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = error.strerror or "no such file"
            raise InputError(f"{path}: cannot be read ({reason}): give a model.safetensors of a run") from None
        return cls.from_bytes(content, str(path))

    @classmethod
    def from_bytes(cls, content: bytes, source: str) -> Model:
        """The inverse of `to_bytes`; raises InputError, naming the source, if it is something else."""
        try:
            metadata = json.loads(_split(content)[0])["__metadata__"]
            facts = {name: json.loads(value) for name, value in metadata.items()}
            tensors = load(content)
            if facts["format"] == "fedopal-secure/model/v1":
                raise InputError(f"{source}: a model of an earlier version, which nobody signed: release it again")
            if facts["format"] != FORMAT:
                raise KeyError
            _check(facts, tensors)
            ridge = facts["lambda"]
            weights = tensors["weights"]
            public_map = None
            if "map.centre" in tensors:
                moment = tensors["map.second_moment"]
                public_map = FeatureMap(tensors["map.centre"], tensors.get("map.basis"), moment)
            grid = FeatureGrid(len(weights), facts["feature_bound"], facts["feature_bits"], facts["normalise"])
            return cls(
                RidgeHead(weights, tensors["intercept"], ridge["value"], ridge["rule"]),
                tensors.get("prompts"),
                tuple(facts["classes"]),
                facts["backbone"],
                bytes.fromhex(facts["backbone_hash"]),
                facts["preprocessing"],
                grid,
                public_map,
                facts["private_prompts"],
                facts["transcript"],
                facts["server"],
                facts["signature"],
            )
        except (SafetensorError, MisuseError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{source}: not a released model: give the model.safetensors of a run") from None


def is_released(server: bytes, transcript: str, digest: bytes, signature: str) -> bool:
    """Whether a server signed that a model of this digest came out of the round with this transcript's head."""
    try:
        return verify(server, SIGN_MODEL, bytes.fromhex(transcript) + digest, bytes.fromhex(signature))
    except ValueError:
        return False


def _split(content: bytes) -> tuple[bytes, bytes]:
    """The header of a safetensors file, which is JSON after its length in 8 bytes, and the tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


def _check(facts: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
    """Raise ValueError unless types, shapes and numbers are those that `Model.save` writes."""
    classes, prompts = facts["classes"], tensors.get("prompts", np.zeros((1, 1), np.float32))
    ridge = facts["lambda"]
    origin = [facts[name] for name in ("transcript", "server", "signature")]
    texts = [facts["backbone"], facts["preprocessing"], ridge["rule"], *origin, *classes]
    "".join(texts).encode()  # raises TypeError for what is no text, UnicodeEncodeError for what cannot be written
    right = (
        isinstance(classes, list)
        and type(ridge["value"]) is float
        and math.isfinite(ridge["value"])
        and tensors["weights"].dtype == tensors["intercept"].dtype == np.float64
        and prompts.dtype == np.float32
        and isinstance(facts["normalise"], bool)
        and isinstance(facts["private_prompts"], bool)
        and tensors["weights"].shape[1:] == tensors["intercept"].shape == (len(classes),)
        and prompts.ndim == 2
        and all(np.isfinite(tensor).all() for tensor in tensors.values())
    )
    if not right:
        raise ValueError


@dataclass(frozen=True)
class Evaluation:
    """How a model does on labelled images; fractions in [0, 1], None where they are not defined.

    `recall` is by class, `auc` the mean over classes of the area under the ROC curve of one class against the rest.
    """

    images: int
    accuracy: float
    accuracy_top5: float | None
    recall: dict[str, float | None]
    auc: float | None


def evaluate(scores: NDArray[np.float64], labels: NDArray[np.int64], classes: tuple[str, ...]) -> Evaluation:
    """Compare scores, float64 (n, classes), with labels, int64 (n,)."""
    if not len(labels):
        raise InputError("there are no images to evaluate on")
    correct = scores.argmax(axis=1) == labels
    top5 = None
    if len(classes) > 5:
        best = np.argpartition(-scores, 5, axis=1)[:, :5]
        top5 = float((best == labels[:, None]).any(axis=1).mean())
    shown = {name: labels == index for index, name in enumerate(classes)}
    recall = {name: float(correct[members].mean()) if members.any() else None for name, members in shown.items()}
    curves = [
        _auc(scores[:, index], members)
        for index, members in enumerate(shown.values())
        if members.any() and not members.all()
    ]
    auc = float(np.mean(curves)) if curves else None
    return Evaluation(len(labels), float(correct.mean()), top5, recall, auc)


def _auc(score: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    from scipy.stats import rankdata

    # The Mann-Whitney statistic: how often a positive scores above a negative, ties counting half.
    ranks, count = rankdata(score), int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))
