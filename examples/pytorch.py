"""A PyTorch module, trained by SCAFFOLD on writers of digits; its state dict goes back into the module."""

import torch
from torch import nn

import dure

torch.manual_seed(0)
module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

run = dure.simulate(
    dure.Scaffold(),
    dure.classification(module),
    dure.data.digits(),
    rounds=20,
    epochs=2,
    optimizer=dure.Optimizer(torch.optim.SGD, {"lr": 0.1}),
)
print(run.summary())

module.load_state_dict({name: torch.from_numpy(value) for name, value in run.state_dict().items()})
