"""POST findings and reports as JSON. The text is also what Slack and compatible chats show."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from html import escape
from typing import Any, ClassVar
from urllib.parse import urlsplit

from traincheck.errors import UsageError
from traincheck.receivers.base import Message, Receiver

_SLACK = "hooks.slack.com"
_FORMATS = ("", "json", "slack")
_WHEN = ("failure", "always")
_TEXT = 3_000  # characters that a chat shows of one message
_TRIES = 3
_PAUSE_S = 1.0  # before the second try; twice as long before the third
_LONGEST_PAUSE_S = 5.0  # that a server may ask for
_TIMEOUT_S = 5.0
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_HTTP_TOO_MANY = 429


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET, and so loses the message."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Webhook(Receiver):
    """POST to a URL.

    Args:
        url: http or https.
        format: "json" for the whole message; "slack" for its text only, as Slack needs it. Empty:
            slack for hooks.slack.com, else json.
        when: send the report "always", or only on "failure": if the exit status is not 0.
        secret: key of the signature in the header ``X-Traincheck-Signature``; empty for none.

    Raises:
        UsageError: an argument is not usable.
    """

    target: ClassVar[str] = "url"
    patience_s: ClassVar[float] = 30.0

    def __init__(self, url: str, format: str = "", when: str = "failure", secret: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("the URL does not begin with https:// and a host", fix="check the URL")
        for name, value, known in (("format", format, _FORMATS), ("when", when, _WHEN)):
            if value not in known:
                use = ", ".join(filter(None, known))
                raise UsageError(f"{name} is {value!r}", fix=f"make it one of {use}")
        self._url, self._host = url, parts.hostname
        self._is_chat = format == "slack" or (not format and parts.hostname == _SLACK)
        self._when, self._secret = when, secret
        self._request = urllib.request.build_opener(_NoRedirect).open

    def finding(self, message: Message) -> None:
        """Send a finding."""
        self._post(message)

    def withdrawn(self, message: Message) -> None:
        """Send that a finding no longer counts."""
        self._post(message)

    def report(self, message: Message) -> None:
        """Send the report, without the texts for other receivers."""
        if self._when == "always" or message["exit_status"]:
            self._post({key: value for key, value in message.items() if key != "markdown"})

    def _post(self, message: Message) -> None:
        run = message["run"]
        said = f"{message['text']}\n{run['program'] or run['id']} on {run['host'] or 'this host'}"
        text = escape(said, quote=False)[:_TEXT]  # chats show no links and no mentions then
        document = {"text": text} if self._is_chat else {**message, "text": text}
        body = json.dumps(document).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "traincheck"}
        if self._secret:
            digest = hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
            headers["X-Traincheck-Signature"] = f"sha256={digest}"
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        for number in range(1, _TRIES + 1):
            pause_s = self._try(request, _PAUSE_S * 2 ** (number - 1), is_last=number == _TRIES)
            if pause_s is None:
                return
            time.sleep(pause_s)

    def _try(
        self, request: urllib.request.Request, pause_s: float, *, is_last: bool
    ) -> float | None:
        """Send once. Returns the seconds to wait before the next try; None if it was sent.

        Raises:
            OSError: the server refuses it. The message does not tell the URL, which is a secret.
        """
        try:
            with self._request(request, timeout=_TIMEOUT_S):
                return None
        except urllib.error.HTTPError as error:
            with error:
                if is_last or error.code not in _BUSY:
                    raise OSError(f"{self._host} answers {error.code} {error.reason}") from None
                asked = error.headers.get("Retry-After", "")
                is_number = error.code == _HTTP_TOO_MANY and asked.isdecimal()
                return (min(float(asked), _LONGEST_PAUSE_S) if is_number else 0.0) or pause_s
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            if is_last:
                reason = getattr(error, "reason", error)
                raise OSError(f"{self._host} cannot be reached: {reason}") from None
            return pause_s
