"""Train a rewritten network with your own loop: what `rewrite` returns is a plain nn.Module, and merges when you are done.

A small residual network learns clothes from the embedded images; then one of its blocks gives up the activation between
its convs, is trained on by the same loop, and becomes a single conv that computes the same.
Run: python examples/own_training_loop.py [--epochs 3]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import layermerge as lm
from layermerge.tasks import Classification, Draw, load_images


class SmallNet(nn.Module):
    """A stem, a residual block, a strided conv and a classifier."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem, self.down = conv(1, width, stride=2), conv(width, 2 * width, stride=2)
        self.first, self.second = conv(width, width), conv(width, width)
        self.relu, self.head = nn.ReLU(), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(x + self.second(self.relu(self.first(x))))
        logits: Tensor = self.head(self.relu(self.down(x)).mean((2, 3)))
        return logits


def conv(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside))


def train(net: nn.Module, data: Classification, epochs: int, lr: float) -> None:
    """Nothing of ours: any optimizer, any loss, any order of batches."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    net.train()
    for epoch in range(epochs):
        for images, labels in data.train_batches(Draw(seed=0, batch_size=64, epoch=epoch, subset=4000)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    net.eval()


def convs(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d) for part in module.modules())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Classification(*load_images("embedded"))
    model = SmallNet()
    train(model, data, epochs, lr=1e-2)

    trace = lm.trace(model, data.example_inputs())
    menu = lm.plan(trace)
    block = trace.blocks[0]
    order = [c for c in menu.candidates if (c.start, c.end) == (block.start, block.end) and c.kept == c.layers]
    net = lm.rewrite(trace, order)  # a plain nn.Module, the block's inner activation gone
    before = data.test(net)
    train(net, data, epochs, lr=2e-3)  # your loop
    fast = lm.merge(net)  # fewer convs, the same function

    x = data.example_inputs()
    with torch.no_grad():
        difference = float((net(x) - fast(x)).abs().max() / net(x).abs().max())
    assert difference < 1e-4
    print(f"original: {convs(model)} convs, {data.test(model)}")
    print(f"rewritten, before training: {before}")
    print(f"merged after training: {convs(fast)} convs, {data.test(fast)}, relative difference {difference:.1e}")


if __name__ == "__main__":
    main()
