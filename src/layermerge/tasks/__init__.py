"""Tasks: what networks are for. Importing this needs neither timm nor torchvision nor Pillow."""

from layermerge.data.preparation import Preparation
from layermerge.data.readers import load_images
from layermerge.data.sets import Draw, Loading
from layermerge.tasks.base import Batch, Network, Score, Task
from layermerge.tasks.classification import Classification
from layermerge.tasks.diffusion import Diffusion
from layermerge.tasks.imitation import Imitation
from layermerge.tasks.noise import NoiseSchedule

__all__ = [
    "Batch",
    "Classification",
    "Diffusion",
    "Draw",
    "Imitation",
    "Loading",
    "Network",
    "NoiseSchedule",
    "Preparation",
    "Score",
    "Task",
    "load_images",
]
