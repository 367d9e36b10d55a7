"""What looking at other people's processes and files may take. docs/limits.md has those that an
operator can meet.
"""

from __future__ import annotations

#: The process that examines files: processor time and wall time a question, of its start, memory beyond its own, ends
#: when idle, how many at a time.
EXAMINER_CPU_S = 2
EXAMINER_WALL_S = 10.0
EXAMINER_START_S = 60.0
EXAMINER_EXTRA_BYTES = 256 << 20
EXAMINER_IDLE_S = 5.0
EXAMINERS = 2
EXAMINER_MAX_MESSAGE = 64 << 10
EXAMINER_MAX_FDS = 4

#: Looks at processes under way at a time, one a user; waiting ones.
LOOKS_AT_A_TIME = 8
#: Of them kept for processes of root.
LOOKS_OF_ROOT = 2
LOOKS_WAITING = 4096
#: Beside those: looks at new roots, whose programs soon shake hands.
ROOT_LOOKS_AT_A_TIME = 4
#: Of /proc/PID/maps, some 40,000 mappings; files of one process that are examined; times that one process may map a
#: file that gets probes.
MAPS_BYTES = 4 << 20
FILES_A_PROCESS = 32
#: And of one in which Go runs: any library may be it.
ALL_FILES_A_PROCESS = 256
MAPPINGS_A_FILE = 512
#: Roots (of containers, chroots) that are known at a time; of a root's /etc/ld.so.cache.
ROOTS = 256
LINKER_CACHE_BYTES = 1 << 20
#: Mounts of the host that are looked at; pause after that, and so many times as long as it took; layers of images that
#: are known, and looked at in a second.
MOUNTS = 4096
MOUNTS_REST_S, MOUNTS_REST = 0.02, 9
LAYERS = 4096
LAYERS_A_SECOND = 64
#: After looks of a user's processes that took LONG_S or more, none of his for so many times as long; who was stopped
#: for hours does not rest for days.
LONG_S, LONGEST_S = 0.05, 60.0
REST = 9
#: Looks of all users but root may take one part of so many of the time; what they may rest later for.
USERS_REST, USERS_BURST_NS = 2, 5_000_000_000

#: Of the descriptors that this process may have, the part that probes may take; of that, the part of one process, of
#: one user, of root, of all users but root.
PROBE_SHARE = 0.5
PROCESS_SHARE, USER_SHARE, ROOT_SHARE, OTHERS_SHARE = 1 / 16, 1 / 4, 3 / 4, 3 / 4

#: Programs of which `status` and `probes` tell why they are not seen; rows of probe_status about them a minute.
PROGRAMS_TOLD = 64
#: What the soft limit of descriptors is raised to, where the hard one allows it.
MOST_DESCRIPTORS = 16384
#: Results of examinations that are kept; times that attaching to a file is tried.
FACTS_KEPT = 4096
#: Of a library that is told apart by its content.
DIGEST_BYTES = 16 << 20
TRIES = 3
#: Kinds of OpenSSL (version and place of the fields) in use at a time, of the host, of a user but root, and of all
#: those; of the 1,024 functions that tell them, those of such a user and of all. As in bpf/tls_ssl.h.
LAYOUTS, LAYOUTS_A_USER, LAYOUTS_OTHERS = 256, 64, 192
SITES_A_USER, SITES_OTHERS = 256, 768
