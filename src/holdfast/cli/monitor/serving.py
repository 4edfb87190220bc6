"""`holdfast monitor serve`: address, token, TLS and limits of the service."""

import os
import ssl
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from rich.console import Console

from holdfast.cli.commands.monitor import Serve
from holdfast.cli.views.output import line
from holdfast.commands.reading.monitors import open_monitor
from holdfast.errors import BadInput
from holdfast.files import read_text
from holdfast.monitor import Monitor

TOKEN = "HOLDFAST_TOKEN"  # Environment variable with the token, used without --token-file.
SHORTEST = 16  # Characters of the shortest token that is accepted (a choice; longer than any guess).


def run_service(q: Serve, console: Console) -> None:
    from holdfast.monitor.service.limits import Limits
    from holdfast.monitor.service.serve import check_extra
    from holdfast.monitor.service.server import Serving, listening, serve, serve_workers

    check_extra()
    token = token_of(q.token_file)
    _check_tls(q.certificate, q.certificate_key)
    limits = Limits(
        body=q.max_body,
        length=q.max_length,
        depth=q.max_depth,
        waiting=q.max_waiting,
        streams=q.max_streams,
        connections=q.max_connections,
        connections_each=q.max_connections_each,
        rate=q.rate,
        burst=q.burst,
        reading=q.reading,
        writing=q.writing,
        idle=q.idle,
        lingering=q.lingering,
        closing=q.closing,
    )
    serving = Serving(q.host, q.port, token, q.open_metrics, q.certificate, q.certificate_key, limits)
    if token is None and not _only_here(q.host):
        line(
            console,
            "warning",
            f"anyone who reaches {q.host}:{q.port} may query it: set a token (--token-file, or {TOKEN})",
            warns=True,
        )
    listening(serving).close()  # Fails here if the address is taken, before the model is loaded.
    opened = (
        open_monitor(q.folder, partial(line, console, "note"), q.device, trust=q.trust)
        if q.workers == 1
        else None
    )
    address = (
        f"{'https' if q.certificate else 'http'}://{f'[{q.host}]' if ':' in q.host else q.host}:{q.port}"
    )
    line(
        console,
        "listening",
        f"{address} (POST /score, websocket /stream, /health, /live, /ready, /metrics); Ctrl-C stops it",
    )
    if opened is None:
        serve_workers(partial(_monitor, q.folder, q.device, q.trust), serving, q.workers)
        return
    if opened.monitor.net.vocabulary is not None:
        shown = "" if token is None else f'-H "Authorization: Bearer ${TOKEN}" '
        line(
            console,
            "try",
            f'curl {shown}-d \'{{"text": "please cancel my order", "k": "final"}}\' {address}/score',
        )
    serve(opened.monitor, serving)


def _monitor(folder: str, device: str | None, trust: bool) -> Monitor:
    """Open the monitor in a worker, without output on the terminal."""
    return open_monitor(folder, lambda _: None, device, trust=trust).monitor


def token_of(file: Path | None) -> str | None:
    """The token for clients, from the file or the environment.

    Never from the command line, which other users of the machine can see.
    """
    found = read_text(file).strip() if file is not None else os.environ.get(TOKEN, "").strip()
    source = str(file) if file is not None else TOKEN
    if not found and file is None:
        return None
    if len(found) < SHORTEST or not found.isascii() or not found.isprintable() or " " in found:
        raise BadInput(
            f"{source}: a token is one word of at least {SHORTEST} ASCII characters. Create one with: "
            f"python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return found


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        raise BadInput("TLS needs both --certificate and --certificate-key.")
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{certificate}, {key}: not a certificate and its key in PEM format ({error})."
        ) from error


def _only_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
