"""Which tests run only with ``--all``, which run with nothing beside them, and which share a worker.

Tests of ``ONLY_ALL``, those with a server of another Debian release than this host's (``OTHER_RELEASES``), and all but
the lowest ``seed`` of a test that has several, are left out unless pytest has ``--all`` or is given tests by id
(``FILE::TEST``). CI leaves them out; ``./test.sh --all`` is run before a change is called done. Names of files are
patterns of ``fnmatch``.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

#: The parameters of tests/servers, always the first, for servers of another release; the others are this host's own,
#: or the newest.
OTHER_RELEASES = ("trixie", "3.9.1")
#: Test -> the parameters with which it runs in CI (fnmatch), or None. No kind of fault is in here alone.
ONLY_ALL: dict[str, str | None] = {
    # 120 faults: half an hour
    "tests/system/test_lab_bench.py::test_the_score_of_fresh_faults_is_that_of_the_kept_ones": None,
    # all boards beside a workload: 90 s
    "tests/system/test_prometheus.py::test_panels_have_data_beside_the_demo_and_a_queue": None,
    # a root and a package of each Debian release: 10 minutes
    "tests/package/test_debian.py::test_lintian_has_no_errors": None,
    "tests/package/test_debian.py::test_a_host_with_an_installation_by_run_sh_is_refused": None,
    "tests/package/test_debian.py::test_from_installation_to_purge": None,
    "tests/package/test_debian.py::test_two_builds_are_equal": None,
    # an image and its pods: 5 minutes
    "tests/package/test_kubernetes.py::test_a_stall_in_another_pod_is_found": None,
    # one build of each Go matrix
    "tests/kernel/test_limiter.py::test_allow_in_every_kind_of_binary": "piestripped",
    "tests/kernel/test_limiter.py::test_a_reservation_that_is_given_back_at_once_is_refused": "2018",
    "tests/kernel/test_limiter.py::test_wait_is_one_decision_also_when_it_refuses_early": "2019",
    "tests/kernel/test_limiter.py::test_a_wait_whose_caller_gives_up_is_cancelled": "plain",
    "tests/kernel/test_limiter_libraries.py::test_each_decision_as_the_program_was_reported": "plain",
    "tests/kernel/test_limiter_sites.py::test_who_asks_is_the_name": "piestripped",
    "tests/servers/test_limiter_models.py::test_go_libraries": "go.mod-*",
    "tests/unit/test_gosym.py::test_build_information": "pie",
    "tests/unit/test_gosym.py::test_functions_and_returns_agree_with_objdump": "pie",
    # one release, or set of settings, of a foreign program; one of several runtimes
    "tests/kernel/test_redis_envoy.py::test_each_decision_by_the_services_own_answers": "environ0",
    "tests/kernel/test_tls_versions.py::test_handshakes_of_another_release": "bullseye",
    "tests/kernel/test_tls_versions.py::test_messages_after_the_handshake_are_none": "bullseye",
    "tests/system/test_lab_brokers.py::test_faults_of_a_broker_have_an_impact_and_their_cause_is_found": "celery*0",
    "tests/servers/test_otlp_releases.py::test_all_arrives_valid_and_what_is_rejected_is_read": "oldest-*",
    "tests/kernel/test_tls_memory.py::test_an_event_loop": "asyncio*",
    "tests/servers/test_otlp_collector.py::test_counts_in_the_collectors_file": "gzip-*",
    "tests/servers/test_celery_settings.py::test_workers_without_remote_control_are_not_counted": None,
    "tests/servers/test_kafka_cluster.py::test_a_queue_keeps_its_identity_and_its_lag_when_its_leader_is_killed": None,
    "tests/system/test_foreign_programs.py::test_runtimes_with_a_tls_of_their_own": "node-*",
    # one of several ways into the same state; the virtual machines' table has all calls that move a clock
    "tests/kernel/test_clock.py::test_a_frequency_change_and_its_undoing_and_no_reads": "adjtimex",
    "tests/kernel/test_clock.py::test_every_step_once_with_actor_call_sign_and_size": "*clock_settime-clock_settime",
    "tests/kernel/test_clock.py::test_who_tries_without_end_and_may_not_hides_nobody_who_may": "clock_adjtime",
    # the first of two programs of test_a_program_that_is_started_anew_while_it_is_sampled has the load of CI's case
    "tests/kernel/test_limiter_hot.py::test_a_hot_limiter_is_sampled_and_the_truth_lies_in_its_interval": None,
    "tests/system/test_crowding_out.py::test_a_library_that_is_mapped_60_000_times_costs_nobody_else_a_probe": "True",
    "tests/system/test_export_faults.py::test_a_collector_that_fails_holds_nothing_up": "[hr]*",
    "tests/system/test_hidden_processes.py::test_processes_of_others_are_seen": "hidepid=ptraceable*",
    "tests/system/test_lab.py::test_a_killed_laboratory_leaves_nothing": "is killed too",
    "tests/system/test_lab.py::test_faults_are_noticed_written_down_and_replayed_and_nothing_stays": "flock_held",
    # three nodes of RabbitMQ, which take two processors; test_etcd.py and test_nats.py change the leader, too
    "tests/servers/test_rabbitmq_cluster.py::test_a_queue_stays_the_same_one_whichever_node_leads_it": None,
    # the way from a stopped consumer to its finding; CI: Celery (also killed), Kafka and RabbitMQ
    "tests/system/test_stopped_consumer.py::test_a_stopped_consumer_is_a_finding_that_names_it": "[ckr]*",
    "tests/system/test_celery.py::test_a_worker_that_goes_on_with_its_second_broker_is_listed_with_the_queue": None,
    # one of the things that a consumer may do; tests/unit/test_correlate_consumers.py has all
    "tests/system/test_consumers.py::test_what_a_consumer_does": None,
    # from a state of Redis to its finding; test_redis_gone.py, test_redis_failover.py and tests/unit have the parts
    "tests/system/test_brokers.py::test_a_deleted_group_and_a_fail_over_are_findings": None,
    # weeks of seconds; test_correlate_hours.py has other tests of the bound, of habits that change, and of two weeks
    "tests/unit/test_correlate_hours.py::test_silence_at_an_hour_that_is_usually_silent_is_not_reported": None,
    "tests/unit/test_correlate_hours.py::test_any_number_of_strangers_takes_nobodys_place": None,
    "tests/unit/test_correlate_hours.py::test_who_goes_home_an_hour_earlier_is_not_silent": None,
    # one of the lengths by which the watermark moves; fewer hostile inputs; one of the formats, verbs and scenarios
    "tests/unit/test_cli_streams.py::test_a_closed_output_and_a_reader_that_has_gone_are_borne_quietly": "[q-]*",
    "tests/unit/test_correlate_catalogue.py::test_a_cause_that_raises_does_not_end_the_others": "broker_slow",
    "tests/unit/test_correlate_silence.py::test_findings_do_not_depend_on_how_often_the_watermark_moves": "700",
    "tests/unit/test_parser_pieces.py::test_hostile_inputs_are_taken_or_refused": "*-1009",
    "tests/unit/test_queues_cli.py::test_watch_repeats_until_it_is_interrupted": "ndjson",
    # some of the kept recordings: test_lab_kept.py replays all
    "tests/unit/test_correlate_evidence.py::test_evidence_names_the_rows_that_it_rests_on": "00*",
    # each replays all kept recordings once more; the scenarios of each symptom and cause have the rule taken out, too
    "tests/unit/test_lab_kept.py::test_without_a_rule_its_kinds_suffer_and_no_others": None,
    # one minute of the laboratory; test_lab.py has another run of it, with an agent and of the mild end, too
    "tests/system/test_lab.py::test_faults_are_noticed_from_the_mild_end_on": None,
}
#: They judge the whole host, or who gets a processor: nothing runs beside them.
ALONE = (
    "tests/package/*.py",  # an agent in a container that observes the whole host
    "tests/system/test_crowding_out.py",
    "tests/system/test_consumers.py",
    "tests/kernel/test_profiles.py",
    "tests/kernel/test_cpu_wait.py",
    "tests/kernel/test_pending_thread.py",
    "tests/kernel/test_floods.py",
    "tests/kernel/test_storms.py",  # what they flood is lost for the agents of other tests, too
    "tests/system/test_busy.py",
    "tests/system/test_frozen_disk.py",  # its sum is of the decisions of all programs
    "tests/system/test_full_disk.py",  # and so is its
    "tests/system/test_profile.py",
    "tests/system/test_prometheus.py",  # no finding may open, also not about the programs of other tests
    "tests/system/test_lab.py",
    "tests/system/test_lab_bench.py",
    "tests/system/test_leaks.py",
    "tests/system/test_silence.py",
)
#: Workers (of ``WORKERS``, or files) whose tests take longest, the longest first: begun last, they would run when there
#: is nothing left to run beside them. ``--durations`` of a run shows whether that changed.
FIRST = (
    "limiters",
    "clock",
    "tls",
    "tests/system/test_stopped_consumer.py",
    "tests/servers/test_alert_routing.py",
    "tests/servers/test_rabbitmq.py",
    "tests/servers/test_rabbitmq_queues.py",
    "tests/servers/test_celery.py",
    "tests/system/test_faults.py",
    "tests/system/test_watch_and_helper.py",
    "tests/servers/test_kafka.py",
    "tests/system/test_lab_brokers.py",
    "tests/kernel/test_redis_gateway.py",
    "tests/servers/test_nats.py",
    "tests/servers/test_otlp_receiver.py",
    "tests/servers/test_postgresql.py",
    "tests/servers/test_etcd.py",
    "tests/system/test_equality.py",
    "tests/system/test_foreign_programs.py",
    "tests/system/test_brokers.py",
    "tests/system/test_containers.py",
    "tests/system/test_frozen_disk.py",
    "tests/unit/test_lab_kept.py",
    "tests/unit/test_correlate_hours.py",
    "tests/unit/test_correlate_silence.py",
    "tests/unit/test_parser_pieces.py",
    "tests/unit/test_otlp_receiver.py",
    "tests/unit/test_targets.py",
    "tests/unit/test_queues_cli.py",
    "tests/unit/test_kombu.py",
)
#: Tests that would wait for each other, or count each other's programs, run one after another in one worker. Others
#: share a worker with the tests of their file.
WORKERS = {
    "clock": (  # fixture own_clock: one of them at a time on a machine
        "tests/kernel/test_clock*.py",
        "tests/kernel/test_notices.py",
        "tests/kernel/test_watch_faults.py",
        "tests/servers/test_notice_hooks.py",
        "tests/servers/test_time_daemons.py",
        "tests/system/test_clock_daemons.py",
        "tests/system/test_notices.py",
        "tests/system/test_prometheus.py",
        "tests/system/test_unwatched.py",
    ),
    "limiters": (
        "tests/kernel/test_limiter*.py",
        "tests/kernel/test_own_functions.py",
        "tests/servers/test_limiter*.py",
    ),
    "redis": ("tests/kernel/test_redis_*.py",),  # a rig reads all Unix sockets of the host
    "tls": (  # libraries that nobody has seen yet
        "tests/kernel/test_new_roots.py",
        "tests/kernel/test_tls*.py",
        "tests/system/test_hostile_files.py",
    ),
}


def _fits(test: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(test, pattern) for pattern in patterns)


def only_all(test: str) -> bool:
    """Whether it runs with ``--all`` only."""
    name, _, given = test.partition("[")
    kept, parameters = ONLY_ALL.get(name, "*"), given.removesuffix("]")
    other = name.startswith("tests/servers/") and parameters.partition("-")[0] in OTHER_RELEASES
    return other or kept is None or not fnmatchcase(parameters, kept)


def alone(test: str) -> bool:
    """Whether nothing may run beside it."""
    return _fits(test.partition("::")[0], ALONE)


def worker(test: str) -> str:
    """Tests of one name run one after another."""
    file = test.partition("::")[0]
    return next((name for name, files in WORKERS.items() if _fits(file, files)), file)


def rank(test: str) -> int:
    """Its place in the order in which workers begin."""
    name = worker(test)
    return FIRST.index(name) if name in FIRST else len(FIRST)
