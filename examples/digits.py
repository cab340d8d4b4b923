"""Trains a small CNN on the 1,797 real digits of scikit-learn, in simulated hardware."""

from torch import nn

import gradweave as gw

data = gw.digits()
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)
design = gw.compile(model, data.train_x, targets=data.train_y, batch=16)
trainer = gw.Trainer(design.simulate(), lr=0.05, momentum=0.9)
trainer.fit(gw.Batches(data.train_x, data.train_y, batch=16), epochs=5)
print(trainer.evaluate(gw.Batches(data.test_x, data.test_y, batch=1)))
model.load_state_dict(trainer.state_dict())
