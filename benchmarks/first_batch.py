"""Ends a fit where its first batch would begin."""

import os

from fedlit.callbacks import FederationCallback


class FirstBatch(FederationCallback):
    """Leave at once: what took so long was starting."""

    def on_round_start(self, federation, module, round, clients) -> None:
        os._exit(0)
