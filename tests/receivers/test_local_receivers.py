"""Webhook, command, Prometheus file and logging."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.receivers.conftest import Messages
from traincheck.errors import UsageError
from traincheck.receivers import webhook
from traincheck.receivers.command import Command
from traincheck.receivers.files import Log, Prometheus
from traincheck.receivers.webhook import Webhook


class Server:
    """A local receiver. answers: statuses of the next answers; 200 when there is none left."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.got.append((dict(self.headers), body))
                self.send_response(server.answers.pop(0) if server.answers else 200)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/services/SECRET"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(webhook, "_PAUSE_S", 0.01)
    found = Server()
    yield found
    found.stop()


def test_a_webhook_gets_the_documents(server: Server, messages: Messages) -> None:
    messages.send(Webhook(server.url))
    finding, report = server.bodies()
    assert finding["finding"] == messages.finding["finding"]
    assert report["report"] == messages.report["report"]
    assert report["exit_status"] == 1
    assert finding["text"].startswith("TC201 error at step 1: Gradients are not cleared")
    assert finding["text"].endswith("train.py on gpu1")
    assert server.got[0][0]["Content-Type"] == "application/json"


def test_a_chat_gets_text_without_links_and_mentions(server: Server, made) -> None:
    hostile = made(title="<!channel> <http://evil|x> & 'y'")
    Webhook(server.url, format="slack").finding(hostile.finding)
    (body,) = server.bodies()
    assert set(body) == {"text"}
    assert "&lt;!channel&gt; &lt;http://evil|x&gt; &amp; 'y'" in body["text"]
    assert len(body["text"]) <= 3000


def test_a_report_without_failure_is_sent_on_request_only(server: Server, messages) -> None:
    good = {**messages.report, "exit_status": 0}
    Webhook(server.url).report(good)
    assert not server.got
    Webhook(server.url, when="always").report(good)
    assert [body["exit_status"] for body in server.bodies()] == [0]


def test_a_signature_proves_the_sender(server: Server, messages: Messages) -> None:
    Webhook(server.url, secret="key").finding(messages.finding)
    ((headers, body),) = server.got
    digest = hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert headers["X-Traincheck-Signature"] == f"sha256={digest}"


@pytest.mark.parametrize("answers", [[503], [429, 500]])
def test_a_busy_server_is_tried_again(server: Server, messages: Messages, answers: list) -> None:
    server.answers = list(answers)
    Webhook(server.url).finding(messages.finding)
    assert len(server.got) == len(answers) + 1


@pytest.mark.parametrize("status", [302, 307, 400, 404])
def test_a_refusal_is_an_error_that_hides_the_url(server: Server, messages, status: int) -> None:
    server.answers = [status]
    with pytest.raises(OSError, match=f"127.0.0.1 answers {status}") as error:
        Webhook(server.url).finding(messages.finding)
    assert "SECRET" not in str(error.value)
    assert len(server.got) == 1


def test_a_server_that_stays_busy_is_given_up(server: Server, messages: Messages) -> None:
    server.answers = [503] * 9
    with pytest.raises(OSError, match="answers 503"):
        Webhook(server.url).finding(messages.finding)
    assert len(server.got) == 3


@pytest.mark.parametrize("url", ["file:///etc/passwd", "hooks.slack.com/x", "https://", "ftp://x"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="does not begin with https"):
        Webhook(url)


def test_slack_is_known_by_its_host() -> None:
    with pytest.raises(UsageError, match="format is 'teams'"):
        Webhook("https://example.com", format="teams")
    with pytest.raises(UsageError, match="when is 'never'"):
        Webhook("https://example.com", when="never")


def test_a_command_gets_the_finding_in_its_environment_and_stdin(
    messages: Messages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "notify.py"
    script.write_text(
        "import json, os, sys\n"
        "known = {k: v for k, v in os.environ.items() if k.startswith('TRAINCHECK_')}\n"
        "json.dump([known, json.load(sys.stdin), sys.argv[1:]], open('got.json', 'w'))\n"
    )
    Command(f"{sys.executable} {script} 'two words'").finding(messages.finding)
    known, stdin, words = json.loads((tmp_path / "got.json").read_text())
    assert words == ["two words"]
    assert stdin == messages.finding
    assert known["TRAINCHECK_CODE"] == "TC201"
    assert known["TRAINCHECK_STEP"] == "1"
    assert known["TRAINCHECK_WHERE"] == "train.py:88"
    assert known["TRAINCHECK_TRACE"] == "/traces/nightly-7"


def test_a_name_is_never_a_part_of_the_command(made, tmp_path: Path) -> None:
    hostile = made(title=f"$(touch {tmp_path}/pwned); touch {tmp_path}/pwned; `x`\0")
    Command(f"sh -c 'echo \"$TRAINCHECK_TITLE\" > {tmp_path}/title'").finding(hostile.finding)
    assert (tmp_path / "title").read_text().startswith("$(touch ")
    assert not (tmp_path / "pwned").exists()


def test_a_command_that_fails_hangs_or_is_missing_is_an_error(messages: Messages) -> None:
    with pytest.raises(ChildProcessError, match="false ended with status 1"):
        Command("false").finding(messages.finding)
    with pytest.raises(FileNotFoundError):
        Command("/no/such/program").finding(messages.finding)
    with pytest.raises(TimeoutError, match=r"sh took more than 0\.2 s"):
        Command("sh -c 'sleep 3000 & sleep 3000'", seconds=0.2).finding(messages.finding)


@pytest.mark.parametrize(("line", "message"), [("", "is empty"), ("echo 'x", "No closing quot")])
def test_a_line_that_is_no_command_is_bad_usage(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Command(line)


SAMPLE = re.compile(r'^traincheck_(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\d+)$')


def samples(path: Path) -> dict[tuple[str, str], int]:
    """Name and labels of each sample, by the grammar of the exposition format."""
    found, typed = {}, set()
    for line in path.read_text().splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        if line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        assert match, line
        assert f"traincheck_{match[1]}" in typed
        found[match[1], match[2]] = int(match[3])
    return found


def test_the_file_for_prometheus_follows_the_run(messages: Messages, tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    receiver = Prometheus(str(path))
    run = 'program="train.py",run="nightly-7"'
    receiver.finding(messages.finding)
    first = samples(path)
    assert first == {
        ("findings", f'{run},code="TC201",severity="error"'): 1,
        ("finished", run): 0,
    }
    receiver.withdrawn(messages.withdrawn)
    assert samples(path) == {("finished", run): 0}
    receiver.progress(messages.progress)
    summary = messages.report["summary"]
    assert samples(path)["steps", run] == summary["steps"]
    receiver.report(messages.report)
    last = samples(path)
    assert last["findings", f'{run},code="TC201",severity="error"'] == 1
    assert last["checks", f'{run},verdict="held"'] == summary["held"]
    assert last["exit_status", run] == last["finished", run] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["job.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_hostile_program_breaks_no_line(messages: Messages, tmp_path: Path) -> None:
    run = {**messages.report["run"], "program": 'a"b\\c\nd', "id": "}"}
    Prometheus(str(tmp_path / "x.prom")).report({**messages.report, "run": run})
    assert samples(tmp_path / "x.prom")


def test_another_ending_is_refused() -> None:
    with pytest.raises(UsageError, match=r"name it x.txt.prom"):
        Prometheus("x.txt")


@pytest.fixture
def plain_logging() -> Iterator[None]:
    """Loggers and handlers are restored after the test."""
    logger, raises = logging.getLogger("traincheck"), logging.raiseExceptions
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    for handler in set(logger.handlers) - set(before[0]):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(before[1])
    logger.propagate = before[2]
    logging.raiseExceptions = raises


def test_a_log_file(messages: Messages, tmp_path: Path, plain_logging: None) -> None:
    file = tmp_path / "found.log"
    messages.send(Log(str(file)))
    first, last = file.read_text().splitlines()
    assert " ERROR traincheck: TC201 error at step 1: " in first
    assert "; fix: Call optimizer.zero_grad()" in first
    assert last.partition(": ")[2].startswith("1 finding; ")


def test_a_configuration_of_logging(messages, tmp_path: Path, plain_logging: None) -> None:
    config = tmp_path / "logging.json"
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "x"), "formatter": "f"}
    config.write_text(
        json.dumps(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "formatters": {"f": {"format": "%(levelname)s %(finding)s", "defaults": {}}},
                "handlers": {"h": handler},
                "loggers": {"traincheck": {"handlers": ["h"]}},
            }
        )
    )
    receiver = Log(config=str(config))
    receiver.finding(messages.finding)
    receiver.close()
    assert (tmp_path / "x").read_text().startswith("ERROR {'id': ")


@pytest.mark.parametrize(
    ("line", "said", "unsaid"),
    [
        ("sh -c 'echo no room >&2; exit 3'", "sh ended with status 3: no room", "shell"),
        ("cat > /no/such/file", "no shell is used, so > is an argument: sh -c '...'", "\n"),
        ("sh -c 'exit 1' a b", "sh ended with status 1", ": "),
    ],
)
def test_a_command_that_fails_is_explained(
    messages: Messages, line: str, said: str, unsaid: str
) -> None:
    with pytest.raises(ChildProcessError) as caught:
        Command(line).finding(messages.finding)
    assert said in str(caught.value)
    assert unsaid not in str(caught.value)
