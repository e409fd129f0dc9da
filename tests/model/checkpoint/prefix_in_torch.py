"""The torch module of `tests.model.connector.own_connectors.Prefix`, as its author would write it.

A text, because it is a file of a release: torch is not installed here.
"""

PREFIX = '''\
"""Queries that read the features only."""

import torch
from torch import nn

from .modeling_parcel import Attention, layer_norm


class Prefix(nn.Module):
    """Each query, and what it read."""

    def __init__(self, config):
        super().__init__()
        vision = config.vision
        width, side = vision["width"], vision["image_px"] // vision["patch_px"]
        self.queries = nn.Parameter(torch.zeros(side * side, width))
        self.norm = layer_norm(width)
        self.attn = Attention(width, config.connector["num_heads"])

    def forward(self, features, budget):
        x = self.queries[:budget].expand(len(features), -1, -1)
        seen = self.norm(features)
        return x + self.attn(x, seen, seen)
'''
