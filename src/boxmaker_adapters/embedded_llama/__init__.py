"""A llama.cpp server of boxmaker's own, in a child process: started, handed out as a URL, ended.

Not an inference driver: what talks to the server is ``llama_server``, as with any other. The server comes
from the package ``xllamacpp``. It runs in a process of its own, since a crash in it must not take the
daemon along, and it dies with the process that started it, however that one ends.
"""

from .engine import Engine, start
from .options import MOST_SLOTS, EngineError, EngineOptions, small_model

__all__ = ["MOST_SLOTS", "Engine", "EngineError", "EngineOptions", "small_model", "start"]
