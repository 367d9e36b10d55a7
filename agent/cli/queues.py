"""``tickscope queues``: the latest state of every queue. queues_show.py, queues_watch.py and queues_discover.py have
its subcommands.
"""

from __future__ import annotations

import sys

import click

from agent.cli import options, queues_discover, queues_show, queues_watch
from agent.errors import NO_ROWS


@click.group("queues", cls=options.VerbGroup, invoke_without_command=True, subcommand_metavar="[VERB] [ARGS]...")
@options.since("Only queues that were polled since this time.", "5m")
@click.option("--now", is_flag=True, help="Query sockets and devices from the kernel now; needs no agent and no store.")
@options.reading
@click.pass_context
def command(ctx: click.Context, since: str, now: bool, fmt: str, store: str) -> None:
    """Show the latest state of every queue: consumer groups, accept queues, connections with much unread or unsent
    data, network devices.

    A queue of a broker has one line, with its partitions added up: lag in messages (~ if it is not exact) and in time
    (behind), the lag of the last four minutes as bars (trend), the time until the lag is 0 at the present rate
    (drains), its status and the reason (why). -o json has all columns, and each partition.

    The history of the queues is in the tables queue_lag and socket_queue.

    \b
    tickscope queues
    tickscope queues show orders
    tickscope query queue_lag --since 10m --group-by destination,consumer_group
    """
    if ctx.invoked_subcommand is None:
        _listed(since, now, fmt, store)


command.add_command(queues_show.command)
command.add_command(queues_watch.command)
command.add_command(queues_discover.command)


def _listed(since: str, now: bool, fmt: str, store: str) -> None:
    from agent.cli import layout, queues_list, queues_text
    from agent.cli.gaps import report_gaps
    from agent.cli.output import coloured, emit_rows, note, quiet_pipe

    brokers, kernel, gaps, notes = queues_list.read(since, store) if not now else ([], list(queues_list.now()), [], [])
    if fmt != "table":
        emit_rows([*brokers, *kernel], fmt, queues_list.COLUMNS, {"gaps": gaps})
    else:
        width, colour = layout.room(sys.stdout), coloured(sys.stdout)
        lines = queues_text.broker_lines(brokers, width, colour) if brokers else []
        lines += [""] if brokers and kernel else []
        lines += queues_text.kernel_lines(kernel, width, colour) if kernel else []
        with quiet_pipe():
            for line in lines:
                print(line)
    report_gaps(gaps, notes, fmt)
    if not (brokers or kernel):
        note("no queues; is the agent running? `tickscope status`")
        click.get_current_context().exit(NO_ROWS)
