"""On-demand profiles: what is attached for seconds while something is wrong, to the processes concerned."""
