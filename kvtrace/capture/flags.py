"""The commands that switch capture on in a server and label a client's request, ready to paste."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.trace.capture_names import CLIENT_ID_KEY, CONTROL_FILE, WORKLOAD_KEY

if TYPE_CHECKING:
    from kvtrace.capture.options import CaptureOptions

SHUTDOWN_TIMEOUT_S: Final = 30
"""vLLM's default of 0 kills the workers at once, and with them the rows since the last commit."""
_PROMPT: Final = "Hello!"


@dataclass(frozen=True, slots=True)
class CaptureCommands:
    """What to start and what to call, as argument lists and as text for a shell."""

    serve: tuple[str, ...]
    curl: tuple[str, ...]
    serve_command: str
    curl_command: str
    python_client: str
    switch_on_command: str | None
    """Where capture starts switched off: writes the control file that switches it on."""


def capture_commands(
    options: CaptureOptions, *, model: str, base_url: str, workload: str, request_id: str | None
) -> CaptureCommands:
    """Return the server's command line and a labelled call with curl and with the `openai` package.

    model: as `vllm serve` takes it and as clients name it. base_url: such as http://localhost:8000.
    """
    config = options.kv_transfer_config()
    serve = [["vllm", "serve", model], ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]]
    labels = {WORKLOAD_KEY: workload} | ({} if request_id is None else {CLIENT_ID_KEY: request_id})
    messages = [{"role": "user", "content": _PROMPT}]
    body = {"model": model, "messages": messages, "vllm_xargs": labels}
    curl = [["curl", f"{base_url}/v1/chat/completions"], ["-H", "Content-Type: application/json"]]
    return CaptureCommands(
        serve=(*_flat(serve), "--kv-transfer-config", json.dumps(config)),
        curl=(*_flat(curl), "-d", json.dumps(body)),
        serve_command=_shell([*serve, ["--kv-transfer-config", json.dumps(config, indent=2)]]),
        curl_command=_shell([*curl, ["-d", json.dumps(body, indent=2, ensure_ascii=False)]]),
        python_client=_python(model, base_url, messages, labels),
        switch_on_command=None if options.enabled else _switch_on(options),
    )


def commands_text(commands: CaptureCommands) -> str:
    """Return everything under headings that a shell takes as comments."""
    sections = [
        ("In vLLM's environment: pip install kvtrace; then the server, its other options as ever", None),
        (None, commands.serve_command),
        ("A client's call, with its label", commands.curl_command),
        ("The same call in Python", commands.python_client),
    ]
    if commands.switch_on_command:
        sections.insert(2, ("Capture is off until", commands.switch_on_command))
    lines = []
    for heading, text in sections:
        lines += [f"# {heading}\n"] if heading else []
        lines += [f"{text}\n\n"] if text else []
    return "".join(lines).removesuffix("\n")


def _flat(groups: list[list[str]]) -> list[str]:
    return [word for group in groups for word in group]


def _shell(groups: list[list[str]]) -> str:
    return " \\\n  ".join(shlex.join(group) for group in groups)


def _switch_on(options: CaptureOptions) -> str:
    path = options.directory.absolute() / CONTROL_FILE
    content = shlex.quote(json.dumps({"enabled": True}))
    fresh = shlex.quote(f"{path}.new")
    return f"(umask 077; echo {content} > {fresh}) && mv {fresh} {shlex.quote(str(path))}"


def _python(model: str, base_url: str, messages: list[dict[str, str]], labels: dict[str, Any]) -> str:
    return (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url={base_url + "/v1"!r}, api_key="EMPTY")\n'
        "client.chat.completions.create(\n"
        f"    model={model!r},\n"
        f"    messages={messages!r},\n"
        f"    extra_body={{'vllm_xargs': {labels!r}}},\n"
        ")"
    )
