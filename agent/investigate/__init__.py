"""On-demand profiles: programs attached for seconds to processes for which something is wrong."""
