"""The published networks that the sweep examines: how each is built with random weights, and what it takes.

Nothing is downloaded. Inputs are as small as a network allows: what is examined does not depend on their size.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import real_networks
from layermerge.errors import ModelError
from layermerge.models import import_torchvision, load_model, random_input
from layermerge.models.torchvision_operators import despite_missing_operators, import_library
from sweep.choosing import chosen

SIZES = (64, 96, 128, 160, 192, 224, 256, 320)
"""Heights and widths that are tried in this order."""

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Network:
    """A network by name. `inputs` are what it takes at batch size 2; None: an image of the first size that it runs at."""

    name: str
    build: Build
    inputs: Any = None

    def example(self, model: nn.Module) -> Any:
        if self.inputs is not None:
            return self.inputs
        return next(image for image in map(_image, SIZES) if _runs(model, image))


def _image(size: int) -> Tensor:
    return random_input((3, size, size))


def _runs(model: nn.Module, image: Tensor) -> bool:
    try:
        with torch.no_grad():
            model.eval()(image)
    except (RuntimeError, AssertionError, ValueError):  # whatever a model makes of an image that is too small for it
        return False
    return True


# -- timm

_ALSO_OF_TIMM = (
    *("mobileone_s0", "efficientnet_b0", "mobilenetv3_small_100", "convnext_atto"),
    *(
        "resnet18",
        "resnet50",
        "mobilenetv2_100",
        "mobilenetv4_conv_small",
        "levit_conv_128s",
        "fastvit_s12",
        "repvit_m0_9",
    ),
)
"""Those that the project's own figures are about, and members whose blocks differ from those of their family's smallest."""


def of_timm() -> list[Network]:
    names = dict.fromkeys((*chosen(), *_ALSO_OF_TIMM))
    return [Network(f"timm:{name}", partial(_timm, name)) for name in names]


def _timm(name: str) -> nn.Module:
    """One that takes a single size is built for the smallest that it can be built for."""
    model = load_model(f"timm:{name}").module
    if not getattr(model, "default_cfg", {}).get("fixed_input_size"):
        return model
    for size in SIZES:
        try:
            small = load_model(f"timm:{name}?img_size={size}").module
        except ModelError:  # of this size there is none
            continue
        if _runs(small, _image(size)):
            return small
    return model


# -- torchvision

_CLASSIFIERS = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "regnet_x_400mf"),
    *("regnet_y_400mf", "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0"),
    *("squeezenet1_1", "vgg11", "vgg11_bn", "wide_resnet50_2"),
)
_SEGMENTERS = ("lraspp_mobilenet_v3_large", "fcn_resnet50", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50")
_DETECTORS = (
    *("retinanet_resnet50_fpn", "fcos_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn"),
    *("ssdlite320_mobilenet_v3_large", "ssd300_vgg16"),
)


def of_torchvision() -> list[Network]:
    networks = [Network(f"torchvision:{name}", partial(_classifier, name)) for name in _CLASSIFIERS]
    networks.append(Network("torchvision:resnet18, FrozenBatchNorm2d", _frozen_resnet18))
    networks += [Network(f"torchvision:{name}", partial(_dense, name)) for name in _SEGMENTERS]
    networks += [Network(f"torchvision:{name}, backbone", partial(_backbone, name)) for name in _DETECTORS]
    networks.append(Network("torchvision:retinanet_resnet50_fpn, with heads", _pyramid_with_heads))
    return networks


def _frozen_resnet18() -> nn.Module:
    torchvision = import_torchvision()
    model: nn.Module = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d)
    return model


def _classifier(name: str) -> nn.Module:
    return load_model(f"torchvision:{name}").module


def _dense(name: str) -> Any:
    """A segmenter or a detector."""
    return import_torchvision().models.get_model(name, weights=None, weights_backbone=None)


def _backbone(name: str) -> nn.Module:
    backbone: nn.Module = _dense(name).backbone
    return backbone


class _WithHeads(nn.Module):
    """A detector up to its boxes: what is left out depends on the values in its maps."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.head(list(self.backbone(images).values()))
        return outputs


def _pyramid_with_heads() -> nn.Module:
    return _WithHeads(_dense("retinanet_resnet50_fpn"))


# -- segmentation_models_pytorch

_DECODERS = (
    "Unet",
    "UnetPlusPlus",
    "DeepLabV3",
    "DeepLabV3Plus",
    "FPN",
    "PSPNet",
    "Linknet",
    "MAnet",
    "PAN",
    "UPerNet",
)


def of_smp() -> list[Network]:
    networks = [Network(f"smp:{name}, resnet18", partial(_smp, name, "resnet18")) for name in _DECODERS]
    networks.append(Network("smp:Unet, mobilenet_v2", partial(_smp, "Unet", "mobilenet_v2")))
    return networks


def _smp(decoder: str, encoder: str) -> nn.Module:
    import_torchvision()
    import segmentation_models_pytorch

    model: nn.Module = getattr(segmentation_models_pytorch, decoder)(encoder, encoder_weights=None)
    return model


# -- diffusers


def of_diffusers() -> list[Network]:
    noisy = (random_input((3, 16, 16)), torch.tensor([10, 500]))
    narrow = (random_input((3, 32, 32)), torch.tensor([10, 500]))
    guided = (random_input((4, 16, 16)), torch.tensor([10, 500]), random_input((5, 32)))
    return [
        Network("diffusers:UNet2DModel", real_networks.small_unet, noisy),
        Network("diffusers:UNet2DModel, the DDPM of CIFAR-10 at width 32", partial(real_networks.ddpm, 32), narrow),
        Network("diffusers:UNet2DConditionModel", real_networks.conditional_unet, guided),
        Network("diffusers:AutoencoderKL", partial(_autoencoder, "AutoencoderKL"), random_input((3, 32, 32))),
        Network("diffusers:VQModel", partial(_autoencoder, "VQModel"), random_input((3, 32, 32))),
        Network("diffusers:AutoencoderTiny", _tiny_autoencoder, random_input((3, 32, 32))),
    ]


def _autoencoder(kind: str) -> nn.Module:
    model: nn.Module = getattr(real_networks.import_diffusers(), kind)(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    return model


def _tiny_autoencoder() -> nn.Module:
    widths = {"encoder_block_out_channels": (16, 16, 16, 16), "decoder_block_out_channels": (16, 16, 16, 16)}
    model: nn.Module = real_networks.import_diffusers().AutoencoderTiny(**widths)
    return model


# -- ultralytics


def of_ultralytics() -> list[Network]:
    return [Network(f"ultralytics:{name}", partial(_yolo, name)) for name in ("yolov8n", "yolo11n")]


def _yolo(name: str) -> nn.Module:
    # It writes settings to the user's home when it is imported, and looks for the internet.
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
    os.environ.update(YOLO_OFFLINE="true", YOLO_VERBOSE="false", YOLO_AUTOINSTALL="false")
    import_torchvision()
    import_library("timm")
    from ultralytics.nn.tasks import DetectionModel

    model: nn.Module = despite_missing_operators(lambda: DetectionModel(f"{name}.yaml", verbose=False))
    return model


def all_networks() -> dict[str, Network]:
    found = [*of_timm(), *of_torchvision(), *of_smp(), *of_diffusers(), *of_ultralytics()]
    return {network.name: network for network in found}
