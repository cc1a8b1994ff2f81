"""Everything that needs torch: models, local training, evaluation, features and weights.

Import from the modules: importing this package alone does not load torch.

- `models`: the networks by name; `resnet` has ResNet-18.
- `sgd`: `SGD`, the settings of local training; `training`: `Trainer`, the local training of one
  client; `batched`: many clients at once.
- `vectors`: a module as one flat vector; `weights`: weights from files.
- `inputs`: from stored images to inputs; `features`: outputs of a frozen network; `device`.
"""
