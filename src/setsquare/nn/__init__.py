"""Networks: blind any layer of a torch model to the protected columns, while training or afterwards."""

from setsquare._extras import require

require("Networks need", "torch")

from setsquare.nn import functional
from setsquare.nn.audit import audit_layer
from setsquare.nn.constraint import OrthogonalityConstraint
from setsquare.nn.fitting import LayerFit, fit_layer
from setsquare.nn.head import refit_head
from setsquare.nn.hooks import Blinded, LayerInfo, blind, list_layers
from setsquare.nn.layer import Orthogonalize

__all__ = [
    "Blinded",
    "LayerFit",
    "LayerInfo",
    "OrthogonalityConstraint",
    "Orthogonalize",
    "audit_layer",
    "blind",
    "fit_layer",
    "functional",
    "list_layers",
    "refit_head",
]
