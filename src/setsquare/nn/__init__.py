"""Neural networks: remove protected columns from any layer of a torch model, during training or afterwards."""

from setsquare._extras import require

require("Networks need", "torch")

from setsquare.nn import functional
from setsquare.nn.activations import register_activation
from setsquare.nn.audit import audit_layer
from setsquare.nn.blinded import Blinded
from setsquare.nn.constraint import OrthogonalityConstraint
from setsquare.nn.given import within_classes
from setsquare.nn.head import refit_head
from setsquare.nn.hooks import blind
from setsquare.nn.identifiability import IdentifiedHead, pho
from setsquare.nn.layer import Orthogonalize
from setsquare.nn.layer_fit import LayerFit, fit_layer
from setsquare.nn.network_layers import LayerInfo, list_layers
from setsquare.nn.recipe import BlindedFit, blind_and_refit

__all__ = [
    "Blinded",
    "BlindedFit",
    "IdentifiedHead",
    "LayerFit",
    "LayerInfo",
    "OrthogonalityConstraint",
    "Orthogonalize",
    "audit_layer",
    "blind",
    "blind_and_refit",
    "fit_layer",
    "functional",
    "list_layers",
    "pho",
    "refit_head",
    "register_activation",
    "within_classes",
]
