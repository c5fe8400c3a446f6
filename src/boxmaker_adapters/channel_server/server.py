"""Accepts connections, a thread each, until told to stop. What happens on one is ``connection``."""

from __future__ import annotations

import logging
import resource
import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from boxmaker_adapters.channel_protocol import ChannelError, printable

from .connection import Connection, RunTurn, Terms
from .own_socket import OwnSocket

LOG = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
DESCRIPTORS_KEPT = 64
"""For the daemon itself: its log, its lock, the engine, whatever a library opens."""
DESCRIPTORS_EACH = 3
"""A connection, its session's log, its request to the model server."""
PAUSE_MS = 500
"""How long to leave the listener alone when the system has no descriptor, memory or thread left."""
FAREWELL = 1.0
"""Seconds, all together, for the clients of turns that are cut off at the stop."""


def connections_that_fit() -> int:
    """How many connections the process's limit on descriptors has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(4, min(MOST_CONNECTIONS, (soft - DESCRIPTORS_KEPT) // DESCRIPTORS_EACH))


class ChannelServer:
    """Serves turns at a Unix socket. `start` once, `stop` once; a ``with`` statement does both.

    `run_turn` is called on a thread for each connection. Times are in seconds. Beyond `connections` open
    ones, new clients wait in the kernel's queue until one ends.
    """

    def __init__(
        self,
        path: Path,
        run_turn: RunTurn,
        *,
        terms: Terms | None = None,
        connections: int | None = None,
    ) -> None:
        self._path = path
        self._run_turn = run_turn
        self._terms = Terms() if terms is None else terms
        self._most = connections_that_fit() if connections is None else connections
        self._cancel = threading.Event()
        self._open: dict[Connection, threading.Thread] = {}
        self._guard = threading.Lock()
        self._waiting_for_room = False
        self._stop_guard = threading.RLock()
        self._stopping = False
        self._all_ended = True
        self._own: OwnSocket | None = None

    def __enter__(self) -> ChannelServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; returns once clients can connect. Raises ChannelError, and then nothing is left behind."""
        own = OwnSocket(self._path)
        try:
            self._wake, self._woken = socket.socketpair()
            self._wake.setblocking(False)
            self._acceptor = threading.Thread(
                target=self._accept, args=(own.listener,), name="channel-accept", daemon=True
            )
            self._acceptor.start()
        except (OSError, RuntimeError) as error:
            own.close()
            raise ChannelError(f"the socket {printable(self._path)} cannot be served: {error}") from error
        self._own = own

    def stop(self, grace: float = 5.0) -> bool:
        """Take no more connections, cancel the running turns, give them `grace` seconds, close.

        True if all turns ended by themselves. Turns that did not are told to their clients as errors and
        left to daemon threads. May be called again and does nothing then.
        """
        with self._stop_guard:
            if self._own is None or self._stopping:
                return self._all_ended
            self._stopping = True
            self._cancel.set()
            self._wake_up()
            self._acceptor.join()
            self._own.close()
            self._all_ended = self._end_connections(time.monotonic() + grace)
            self._wake.close()
            self._woken.close()
            return self._all_ended

    def _end_connections(self, deadline: float) -> bool:
        with self._guard:
            left = dict(self._open)
        for connection in left:
            connection.hurry()
        for thread in left.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [connection for connection, thread in left.items() if thread.is_alive()]
        farewell = time.monotonic() + FAREWELL
        for connection in late:
            connection.give_up(max(0.0, farewell - time.monotonic()))
        if late:
            LOG.warning("%d turns were cut off at the stop", len(late))
        return not late

    def _accept(self, listener: socket.socket) -> None:
        troubled = False
        while not self._stopping:
            if not self._await_client(listener):
                continue
            try:
                sock, _ = listener.accept()
                self._serve(sock)
                troubled = False
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                pass  # that client is gone
            except Exception as error:  # no descriptor, memory or thread; nothing may end this loop
                if not troubled:
                    LOG.warning("no connection can be taken for now: %s", error)
                troubled = True
                self._await_client(None)

    def _await_client(self, listener: socket.socket | None) -> bool:
        """Until somebody connects (True) or the state of things has changed. Without room for one more, or
        without `listener`, only the end of a connection, the stop, or half a second can change it."""
        with self._guard:
            full = len(self._open) >= self._most
            self._waiting_for_room = full or listener is None
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if listener is not None and not full:
            poll.register(listener, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(PAUSE_MS if listener is None else None)]
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
        return listener is not None and listener.fileno() in ready

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock, self._run_turn, self._cancel, self._terms)
        thread = threading.Thread(
            target=self._thread, args=(connection,), name="channel-connection", daemon=True
        )
        with self._guard:
            self._open[connection] = thread
        try:
            thread.start()
        except RuntimeError:
            with self._guard:
                del self._open[connection]
            sock.close()
            raise

    def _thread(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._guard:
                del self._open[connection]
                if self._waiting_for_room:
                    self._wake_up()

    def _wake_up(self) -> None:
        with suppress(OSError):  # enough are in there already, or all is over
            self._wake.send(b"\0")
