"""Everything that needs torch: models, local training, evaluation, features and weights.

Import from the modules: importing this package alone does not load torch.

- `models`: the networks that a spec can name; `resnet`: ResNet-18.
- `sgd`: the settings of local training; `losses`: losses that correct for label skew.
- `training`: local training and evaluation of one client; `batched`: training of many clients at
  once; `own_training`: training with a user's function.
- `vectors`: conversion between modules and flat vectors; `weights`: weights from files.
- `inputs`: conversion of stored images to inputs; `features`: outputs of a frozen network.
- `feature_maps`: fixed functions of one sample with centre, unit and digest; `random_features`:
  their networks with random weights; `dead_leaves`: the synthetic images of their filters.
- `calibration`: re-training of the output layer; `device`: the device and repeatable computation.
"""
