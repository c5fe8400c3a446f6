"""Serves turns over a Unix socket, one connection a turn; the other end is ``channel_client``."""

from .connection import RunTurn, Terms
from .server import ChannelServer

__all__ = ["ChannelServer", "RunTurn", "Terms"]
