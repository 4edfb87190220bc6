"""Attacks: methods that search for counterexamples, one algorithm a file, and CLEVER, which only
estimates.
"""

from holdfast.attacks.carlini import CarliniWagner
from holdfast.attacks.clever import CLEVER, CleverRNN
from holdfast.attacks.corners import Corners
from holdfast.attacks.external import External, art_attack, foolbox_attack
from holdfast.attacks.mesh import Mesh, MeshLagrangian
from holdfast.attacks.pgd import PGD
from holdfast.attacks.steps import Steps

__all__ = [
    "CLEVER",
    "PGD",
    "CarliniWagner",
    "CleverRNN",
    "Corners",
    "External",
    "Mesh",
    "MeshLagrangian",
    "Steps",
    "art_attack",
    "foolbox_attack",
]
