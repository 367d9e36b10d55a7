"""Limits of the work on other processes and their files. docs/limits.md has those that an operator can meet."""

from __future__ import annotations

from agent.common.fairness import UpperBound
from agent.kernel.opening import MAPS_BYTES

#: The ELF analyzer: CPU time and wall time per request, wall time of its start, memory beyond its own, idle time until
#: it ends, processes at a time.
ANALYZER_CPU_S = 2
ANALYZER_WALL_S = 10.0
ANALYZER_START_S = 60.0
ANALYZER_EXTRA_BYTES = 256 << 20
ANALYZER_IDLE_S = 5.0
ANALYZERS = 2
ANALYZER_MAX_MESSAGE = 64 << 10
ANALYZER_MAX_FDS = 4

#: Process inspections under way at a time, one per user; waiting ones.
SCANS_AT_A_TIME = 8
SCANS_WAITING = 4096
#: In addition: inspections of new roots, whose programs soon do TLS handshakes.
ROOT_SCANS_AT_A_TIME = 4
#: Files per process that are analyzed; mappings per process of a file with probes.
FILES_A_PROCESS = 32
#: The same for a process with Go code: any of its libraries may be Go.
ALL_FILES_A_PROCESS = 256
MAPPINGS_A_FILE = 512
#: Roots (of containers, chroots) known at a time; bytes of a root's /etc/ld.so.cache.
ROOTS = 256
LINKER_CACHE_BYTES = 1 << 20
#: Mounts of the host that are read; the pause after that, and its minimum as a multiple of the reading's duration;
#: image layers that are known, and that are read per second.
MOUNTS = 4096
MOUNTS_PAUSE_S, MOUNTS_PAUSE = 0.02, 9
LAYERS = 4096
LAYERS_A_SECOND = 64
#: The part of the time that inspections may take; a user has a quarter of it (agent/common/fairness.py), root is
#: exempt. Burst after a pause, s. The longest time that one inspection counts, s, so that a process that was stopped
#: for hours does not wait for days.
INSPECTION_PART, INSPECTION_MOST_S = 0.4, 8.0
LONGEST_S = 60.0

#: The part of this process's descriptors that probes may take.
PROBE_SHARE = 0.5

#: Programs whose reason for not being observed `status` and `probes` show; rows of probe_status about them per minute.
PROGRAMS_REPORTED = 64
#: The soft limit of descriptors is raised to this, if the hard one allows it.
MOST_DESCRIPTORS = 16384
#: Analysis results that are kept; attempts to attach to a file.
FACTS_KEPT = 4096
TRIES = 3
#: OpenSSL layouts (version and field offsets) in use at a time, and functions that identify them. As in bpf/tls_ssl.h.
LAYOUTS, SITES = 256, 1024
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "programs",
        "descriptors for probes",
        f"half of RLIMIT_NOFILE (at most {MOST_DESCRIPTORS:,}); of these 1/4 per user",
        "no probes until the next full scan (10 s) finds room",
        "`tickscope probes`, `status` (`analysis.probe_descriptors`)",
        setting="`LimitNOFILE`",
    ),
    UpperBound(
        "programs",
        "analysis of one file",
        f"{ANALYZER_CPU_S} s of CPU time, {ANALYZER_WALL_S:g} s elapsed, {ANALYZER_EXTRA_BYTES >> 20} MiB of memory",
        f"not watched; retried up to {TRIES} times if the machine was busy or the analyzer was killed",
        "`tickscope probes`, `status` (`analysis.overruns`)",
    ),
    UpperBound(
        "programs",
        "share of time for inspecting processes of users other than root",
        f"{INSPECTION_PART / 4:.0%} per user, {INSPECTION_PART * 3 / 4:.0%} in all",
        "inspected later",
        "-",
    ),
    UpperBound(
        "programs",
        "libraries of one process",
        f"{FILES_A_PROCESS} ({ALL_FILES_A_PROCESS} in a Go program)",
        "the others get no probes",
        "`probe_status` row `process:NAME`, `tickscope probes`",
    ),
    UpperBound(
        "programs",
        "mappings of a library by one process before it has probes",
        MAPPINGS_A_FILE,
        "no probes",
        "`probe_status` row `process:NAME`, `tickscope probes`",
    ),
    UpperBound(
        "programs",
        "`/proc/PID/maps`",
        MAPS_BYTES >> 20,
        "libraries after that size are not found",
        "`probe_status` row `process:NAME`, `tickscope probes`",
        "MiB",
    ),
    UpperBound(
        "programs",
        "processes waiting to be inspected",
        SCANS_WAITING,
        "found by the full scan (10 s)",
        "`status` (`analysis.scans_dropped`)",
        shared=True,
    ),
    UpperBound(
        "programs",
        "OpenSSL builds in use at once",
        LAYOUTS,
        "handshakes of the others are not seen until a full scan finds room",
        "`tickscope probes`",
        shared=True,
    ),
    UpperBound(
        "programs",
        "programs listed as not watched",
        PROGRAMS_REPORTED,
        "of the others, only the number is shown",
        "`probe_status` row `programs`, `tickscope probes`",
        shared=True,
    ),
)
