"""Attack the digits CNN with foolbox and ART, which are no dependencies of holdfast, and with PGD beside them.

pip install foolbox adversarial-robustness-toolbox
python scripts/try_other_attacks.py
"""

import foolbox
import torch
from art.attacks.evasion import ProjectedGradientDescent
from art.estimators.classification import PyTorchClassifier

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn

INPUTS = 3


def main() -> None:
    data, module = digits("test"), digits_cnn()
    x, y = data.x[:INPUTS], data.y[:INPUTS]
    net = hf.Network.from_torch(module, domain=(0, 1))
    classifier = PyTorchClassifier(
        module,
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=10,
        clip_values=(0, 1),
        device_type="cpu",
    )
    attacks = {
        "foolbox LinfPGD": hf.attacks.foolbox_attack(foolbox.attacks.LinfPGD(), bounds=(0, 1)),
        "foolbox FGSM": hf.attacks.foolbox_attack(foolbox.attacks.FGSM(), bounds=(0, 1)),
        "ART PGD": hf.attacks.art_attack(ProjectedGradientDescent(classifier, verbose=False)),
        "holdfast PGD": hf.attacks.PGD(),
    }
    for name, method in attacks.items():
        found = hf.radius(net, x, y, methods=[method])
        print(f"{name:16}", *(f"{one.upper.value:.4f}" for one in found))


if __name__ == "__main__":
    main()
