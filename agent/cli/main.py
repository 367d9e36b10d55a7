"""``tickscope``: a lazy group that imports a verb's module on use. ``main`` turns an AgentError into an exit status."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Any

import click

from agent.cli import options
from agent.common.version import VERSION
from agent.errors import INTERRUPTED, USAGE, AgentError
from agent.log import log_last_message

#: Heading -> verb -> one line of help; the module is agent.cli.VERB, its command the attribute ``command``.
SECTIONS = {
    "Run": {
        "run": "Run the agent in the foreground.",
        "demo": "Run the agent beside a small real workload, to see findings.",
        "status": "Show the running agent: processes, probes, losses, store, export.",
        "probes": "List the probes, their state and the reason.",
        "doctor": "Check what works on this host, with remedies.",
        "config": "Check the settings, show them with their sources, or print an example.",
    },
    "Findings and causes": {
        "findings": "List findings: symptoms with their causes.",
        "explain": "Explain one finding, with its evidence.",
        "report": "Write a finding or a time as one HTML file.",
        "symptoms": "List all symptoms, or describe one.",
        "causes": "List all causes, or describe one.",
    },
    "At a glance": {
        "top": "Show findings, limiters, queues, clocks and blocked processes, live.",
        "limiters": "Show rate limiters and their decisions.",
        "ui": "Show findings and curves as a web page on this host.",
        "queues": "Show queues and their lag.",
        "clock": "Show the clocks: now, history, live, conversion.",
    },
    "Recorded rows": {
        "tables": "List the tables and their columns.",
        "query": "Print rows of a table.",
        "sql": "Run a SQL query; every table is a view.",
        "tail": "Follow the new rows of a table, as ndjson.",
        "record": "Write rows to a recording.",
        "replay": "Compute the findings of a recording.",
    },
    "Laboratory": {
        "lab": "Inject real faults into a workload, and score the findings.",
    },
    "Other": {
        "completion": "Print a shell completion script.",
    },
}
#: Nothing more can be written to a file or device.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
VERBS = {verb: text for section in SECTIONS.values() for verb, text in section.items()}


class Verbs(options.VerbGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        found = importlib.import_module(f"agent.cli.{name}").command
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Ends quietly also if the reader of stdout has gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from agent.cli.output import forget_stdout

            forget_stdout()
            ctx.exit(0)

    def nearest(self, name: str) -> list[str]:
        from agent.tables import TABLES

        return [f"query {name}"] if name in TABLES else super().nearest(name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the verbs before the options."""
        for heading, verbs in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{verb:<10}", text) for verb, text in verbs.items()])
        click.Command.format_options(self, ctx, formatter)


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    """Looks the version up on request only: this takes longer than the whole start of a verb."""
    if requested and not ctx.resilient_parsing:
        click.echo(f"tickscope, version {VERSION}")
        ctx.exit()


@click.group(
    cls=Verbs,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Which limiter decisions and queue delays were caused by a clock jump, a slow network, a TLS handshake or a system
    call.

    Start with `tickscope run` as root (or `tickscope demo`), then ask in another shell:

    \b
      tickscope findings
      tickscope explain last
      tickscope query tcp_rtt --since 1m --group-by peer
    """


def main() -> None:
    """Runs a verb, and turns errors into a message and an exit status. This is the only place that does."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # A terminal without UTF-8 still shows all rows.
    try:
        try:
            " ".join(sys.argv).encode()
        except UnicodeEncodeError as error:
            raise AgentError("an argument is not UTF-8", exit_code=USAGE) from error
        try:
            sys.exit(cli(prog_name="tickscope", standalone_mode=False))
        except OSError as error:  # of click's own output: a verb's is written by agent/cli/output.py
            if error.errno not in _FULL:
                raise
            from agent.cli.output import forget_stdout

            forget_stdout()
            raise AgentError("cannot write the output", why=str(error.strerror)) from error
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except AgentError as error:
        from agent.cli.layout import room, wrapped

        log_last_message(
            "\n".join(
                part
                for line in f"tickscope: {error}".splitlines()
                for part in wrapped(line, room(sys.stderr), "", "       ")
            )
        )
        sys.exit(error.exit_code)
