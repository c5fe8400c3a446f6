"""A llama-server's address and its small answers, all of them JSON; not its chat stream.

Every failure is an InferenceError that names the address and says what to do.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from contextlib import AbstractContextManager
from typing import Any

from attrs import field, frozen

from boxmaker_adapters.json_bounds import VALUES, too_many_values
from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.messages import short
from boxmaker_core.ports import Cancel

from .failures import Refusal, refusal_of_text
from .transport import Answer, NotHttp, ask
from .wire import Broken, Unreachable, Watch

PROBE_SECONDS = 10.0
ERROR_BYTES = 64 * 1024
ANSWER_BYTES = 16 * 1024 * 1024
"""Of a JSON answer: ``/tokenize`` sends a number for each token, up to eight bytes."""

NOT_A_SERVER = "is it llama-server? see to url in [inference]"


class TimedOut(Exception):
    """A small answer took longer than it may."""


NO_ANSWER = (Unreachable, Broken, NotHttp, TimedOut)
"""What `Server.answer` raises of its own."""


class Trouble(InferenceError):
    """The server gave no usable answer: ``what`` happened, and the ``remedy``."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy


class Refused(Trouble):
    """The server answered with an error status."""

    def __init__(self, url: str, path: str, refusal: Refusal) -> None:
        super().__init__(f"{url}{path} answered {refusal}", remedy(refusal))
        self.refusal = refusal


def remedy(refusal: Refusal) -> str:
    """What the user can do about an error status."""
    match refusal.status:
        case 401 | 403:
            return "set api_key_file in [inference] to a file with the server's key"
        case 404 | 405:
            return NOT_A_SERVER
        case 413:
            return "what stands between boxmaker and llama-server refuses long requests: raise its limit"
        case 501:
            return "start llama-server with that feature"
        case 503:
            return "wait until it has loaded its model"
        case int(status) if 300 <= status < 400:
            return "redirects are not followed: set url in [inference] to the final address"
        case _:
            return "see llama-server's own log"


def checked_url(url: str) -> str:
    """A server's address without a slash at its end. Raises ValueError, naming what is wrong."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"url {short(url)} cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"url {short(url)} must look like http://127.0.0.1:8080")
    if parts.username is not None or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError(f"url {short(url.split('@')[-1])} must be scheme, host, port and path alone")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError(f"url {short(url)} must leave out /v1, which is added to it")
    return f"{parts.scheme}://{parts.netloc}{path}"


@frozen(kw_only=True)
class Server:
    """Where it is and how to ask it; times in seconds. Make it with `server`."""

    url: str
    headers: dict[str, str] = field(repr=False)
    connect_timeout: float
    api_key: str | None = field(default=None, repr=False)

    def refusal(self, refusal: Refusal) -> Refusal:
        """What may be shown of it: not the key, which some repeat."""
        return refusal if self.api_key is None else refusal.without(self.api_key)

    def open(
        self, method: str, path: str, body: bytes | None, watch: Watch
    ) -> AbstractContextManager[Answer]:
        """See `transport.ask`."""
        return ask(
            method,
            self.url + path,
            body=body,
            headers=self.headers,
            watch=watch,
            connect_timeout=self.connect_timeout,
        )

    def answer(
        self, path: str, body: bytes | None = None, *, seconds: float, cancel: Cancel | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a small answer; a body asks by POST.

        Raises Unreachable, Broken, NotHttp, TimedOut, and ShuttingDown once `cancel` is set.
        """
        end = time.monotonic() + seconds

        def watch(_: float) -> None:
            if cancel is not None and cancel.is_set():
                raise ShuttingDown
            if time.monotonic() > end:
                raise TimedOut(f"no answer within {seconds:g} s")

        with self.open("GET" if body is None else "POST", path, body, watch) as answer:
            return answer.status, answer.read(ANSWER_BYTES if answer.status == 200 else ERROR_BYTES)

    def ask(
        self,
        path: str,
        body: bytes | None = None,
        *,
        seconds: float = PROBE_SECONDS,
        cancel: Cancel | None = None,
        values: int = VALUES,
    ) -> Any:
        """The JSON of a small answer, of about `values` values at most.

        Raises Trouble, Refused for an error status, and ShuttingDown once `cancel` is set.
        """
        try:
            status, data = self.answer(path, body, seconds=seconds, cancel=cancel)
        except NO_ANSWER as error:
            raise self.trouble(error, path) from None
        if status != 200:
            raise Refused(self.url, path, self.refusal(refusal_of_text(data, status)))
        if too_many_values(data, values):
            raise Trouble(f"{self.url}{path} answered with more than {values} values", NOT_A_SERVER)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            shown = short(data[:200].decode(errors="replace"))
            raise Trouble(f"{self.url}{path} answered no JSON but {shown}", NOT_A_SERVER) from None

    def trouble(self, error: Exception, path: str = "") -> Trouble:
        """What to say about one of `NO_ANSWER`."""
        match error:
            case Unreachable():
                return Trouble(
                    f"cannot connect to {self.url}: {error}",
                    "start llama-server there, or see to url in [inference]",
                )
            case NotHttp():
                return Trouble(f"{self.url} does not speak HTTP, {error}", NOT_A_SERVER)
            case TimedOut():
                return Trouble(
                    f"{self.url}{path}: {error}", "see to llama-server, which takes connections but hangs"
                )
            case _:
                return Trouble(f"{self.url}{path}: {error}", "see whether llama-server runs, and its log")


def server(url: str, *, api_key: str | None, connect_timeout: float) -> Server:
    """Raises ValueError for an address or a key that cannot be used."""
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ValueError("the API key must be one word of printable ASCII: see to api_key_file")
        headers["Authorization"] = f"Bearer {api_key}"
    return Server(url=checked_url(url), headers=headers, connect_timeout=connect_timeout, api_key=api_key)
