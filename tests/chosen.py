"""Which tests run only with ``--all``, which run with nothing beside them, and which share a worker.

Tests of ``ONLY_ALL``, and all but the lowest ``seed`` of a test that has several, are left out unless pytest has
``--all`` or is given tests by id (``FILE::TEST``). CI leaves them out; ``./test.sh --all`` is run before a change is
called done. Names of files are patterns of ``fnmatch``.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

#: Test -> the parameters with which it runs in CI (fnmatch), or None. No kind of fault is in here alone.
ONLY_ALL: dict[str, str | None] = {
    # one build of each Go matrix
    "tests/kernel/test_limiter.py::test_allow_in_every_kind_of_binary": "piestripped",
    "tests/kernel/test_limiter.py::test_a_reservation_that_is_given_back_at_once_is_refused": "2018",
    "tests/kernel/test_limiter.py::test_wait_is_one_decision_also_when_it_refuses_early": "2019",
    "tests/kernel/test_limiter.py::test_a_wait_whose_caller_gives_up_is_cancelled": "plain",
    "tests/kernel/test_limiter_libraries.py::test_each_decision_as_the_program_was_reported": "plain",
    "tests/kernel/test_limiter_sites.py::test_who_asks_is_the_name": "piestripped",
    "tests/servers/test_limiter_models.py::test_go_libraries": "go.mod-*",
    # one release, or set of settings, of a foreign program
    "tests/kernel/test_redis_envoy.py::test_each_decision_by_the_services_own_answers": "environ0",
    "tests/kernel/test_tls_versions.py::test_handshakes_of_another_release": "bullseye",
    "tests/kernel/test_tls_versions.py::test_messages_after_the_handshake_are_none": "bullseye",
    "tests/system/test_celery.py::test_a_worker_that_ends_is_a_finding_about_its_queue": "19*",
    "tests/system/test_lab_brokers.py::test_faults_of_a_broker_have_an_impact_and_their_cause_is_found": "celery*",
    **{
        f"tests/servers/test_rabbitmq.py::test_{name}": "own*"
        for name in (
            "ready_unacknowledged_consumers_and_rates",
            "growing_then_draining",
            "a_stopped_consumer_takes_no_more_than_its_prefetch",
            "age_of_the_first_message_that_has_a_time",
            "a_stream_has_no_lag_by_what_it_keeps",
            "a_delay_queue_holds_delayed_messages_until_they_are_dead_lettered",
            "tasks_of_celery_with_a_countdown_are_delayed_until_they_are_due",
            "names_virtual_hosts_and_patterns",
            "a_memory_alarm_is_reported_with_every_queue",
            "a_wrong_password_of_the_management_port_costs_only_what_that_port_has",
            "least_rights_for_the_management_port",
            "a_stopped_a_dead_and_a_returned_node",
            "a_worker_of_celery_that_holds_all_that_it_may_and_is_killed",
            "a_retry_of_celery_waits_in_the_worker",
            "tls",
        )
    },
    **{
        f"tests/servers/test_nats.py::test_{name}": "own*"
        for name in (
            "waiting_delivered_redelivered_and_acknowledged_messages",
            "an_age_is_between_the_bounds_that_the_script_knows",
            "growing_then_draining_then_idle",
            "a_stopped_consumer_and_one_that_nobody_uses",
            "messages_that_were_deleted_are_not_counted",
            "a_full_consumer_a_work_queue_and_names",
            "timers_are_those_of_the_server",
            "a_stopped_a_killed_and_a_returned_server",
            "only_the_leader_of_a_consumer_reports_it",
        )
    },
    **{
        f"tests/servers/test_etcd.py::test_{name}": "own*"
        for name in (
            "keys_that_a_copy_lacks",
            "a_copy_under_another_prefix_that_is_never_right",
            "members_their_leader_and_its_change",
            "proposals_wait_for_a_majority_and_a_member_without_one_is_cut_off",
            "events_that_wait_for_a_watcher_that_does_not_read",
            "leases_end_when_they_were_granted_for",
            "without_the_right_to_read_keys_leases_have_no_keys",
            "a_compaction_that_slow_watchers_may_not_survive_is_named",
            "a_full_database_refuses_writes",
            "least_rights_and_wrong_passwords",
        )
    },
    **{
        f"tests/servers/test_postgresql.py::test_{name}": "own*"
        for name in (
            "each_figure_is_the_tables",
            "the_state_is_what_the_script_did",
            "real_workers_that_stop_are_slow_and_are_killed",
            "a_worker_that_holds_a_row_keeps_nobody_waiting",
            "nothing_is_locked_between_polls_and_a_locked_table_costs_only_its_queues",
            "a_slow_query_is_asked_seldom_and_its_figures_are_marked",
            "a_query_that_does_not_fit_is_refused_in_words_and_costs_nothing_else",
            "odd_values_are_unknown_with_a_reason",
            "jobs_of_procrastinate",
            "slots_in_bytes_and_seconds",
            "a_slot_that_loses_its_wal",
            "a_standby_and_its_replay",
            "least_rights",
            "a_stopped_a_dead_and_a_returned_server",
            "a_server_of_this_node_is_found_with_its_setting",
        )
    },
    "tests/servers/test_otlp_releases.py::test_all_arrives_valid_and_what_is_rejected_is_read": "oldest-*",
    # the way from a stopped consumer to its finding; Celery, Kafka and RabbitMQ have it
    "tests/system/test_celery.py::test_a_worker_that_goes_on_with_its_second_broker_is_listed_with_the_queue": None,
    "tests/system/test_etcd.py::test_a_stopped_copier_is_a_finding_that_names_it": None,
    "tests/system/test_nats.py::test_a_stopped_consumer_is_a_finding_that_names_it": None,
    "tests/system/test_postgresql.py::test_a_stopped_worker_is_a_finding_that_names_it": None,
    # weeks of seconds; test_correlate_hours.py has other tests of the bound, of habits that change, and of two weeks
    "tests/unit/test_correlate_hours.py::test_silence_at_an_hour_that_is_usually_silent_is_not_reported": None,
    "tests/unit/test_correlate_hours.py::test_any_number_of_strangers_takes_nobodys_place": None,
    "tests/unit/test_correlate_hours.py::test_who_goes_home_an_hour_earlier_is_not_silent": None,
    # one of the lengths by which the watermark moves
    "tests/unit/test_correlate_silence.py::test_findings_do_not_depend_on_how_often_the_watermark_moves": "300",
    # each replays all kept recordings once more; the scenarios of each symptom and cause have the rule taken out, too
    "tests/unit/test_lab_kept.py::test_without_a_rule_its_kinds_suffer_and_no_others": None,
    # one minute of the laboratory; test_lab.py has another run of it, with an agent and of the mild end, too
    "tests/system/test_lab.py::test_faults_are_noticed_from_the_mild_end_on": None,
}
#: They judge the whole host, or who gets a processor: nothing runs beside them.
ALONE = (
    "tests/system/test_crowding_out.py",
    "tests/kernel/test_profiles.py",
    "tests/kernel/test_cpu_wait.py",
    "tests/kernel/test_pending_thread.py",
    "tests/kernel/test_storms.py",  # what it floods is lost for the agents of other tests, too
    "tests/system/test_busy.py",
    "tests/system/test_profile.py",
    "tests/system/test_lab.py",
    "tests/system/test_leaks.py",
    "tests/system/test_silence.py",
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
        "tests/system/test_notices.py",
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
    name, _, parameters = test.partition("[")
    kept = ONLY_ALL.get(name, "*")
    return kept is None or not fnmatchcase(parameters.removesuffix("]"), kept)


def alone(test: str) -> bool:
    """Whether nothing may run beside it."""
    return _fits(test.partition("::")[0], ALONE)


def worker(test: str) -> str:
    """Tests of one name run one after another."""
    file = test.partition("::")[0]
    return next((name for name, files in WORKERS.items() if _fits(file, files)), file)
