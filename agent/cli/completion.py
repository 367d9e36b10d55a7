"""``tickscope completion``: click's own completion scripts; for bash one that takes any name."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, get_completion_class

#: click's script hands names to bash as they are, and bash puts them on the command line. Names of limiters and queues
#: come from other programs: ``$(...)`` in one would run. It also takes the words as bash breaks them: a name with a
#: colon would be several. This one has click split the line (its last word is number -1), and quotes names.
_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word=${COMP_WORDS[COMP_CWORD]} type value
    local before=${line##*[[:space:]]}
    [[ $word == *[!$COMP_WORDBREAKS]* ]] && before=${before%%"$word"}
    [[ $line == *[[:space:]] ]] && line+="''"
    while IFS=, read -r type value; do
        case $type in
        dir) COMPREPLY=() && compopt -o dirnames ;;
        file) COMPREPLY=() && compopt -o default ;;
        plain)
            printf -v value %%q "$value"
            value=${value//\\,/,} # of a list of columns
            COMPREPLY+=("${value#"$before"}")
            ;;
        esac
    done < <(COMP_WORDS=$line COMP_CWORD=-1 %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    source_template = _BASH


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script. Use it as: source <(tickscope completion bash)."""
    from agent.cli.main import cli

    kind = _Bash if shell == "bash" else get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "tickscope", "_TICKSCOPE_COMPLETE").source())
