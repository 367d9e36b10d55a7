"""Packaging. BCC is not a Python dependency: it is the distribution's python3-bpfcc, imported only by the loader under
the system's python3. (PyPI's `bcc` is an unrelated package and must never be pulled in.)
"""

import re

from setuptools import find_packages, setup

setup(
    name="tickscope",
    version=re.search('VERSION = "(.+)"', open("agent/common/version.py", encoding="utf-8").read())[1],  # noqa: SIM115
    description=(
        "Tells which limiter decisions and queue delays a clock jump, a slow network, TLS or a system call caused"
    ),
    long_description=open("README.md", encoding="utf-8").read(),  # noqa: SIM115
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["agent*", "bpf*", "exporters*", "dashboards*"]),
    package_data={
        "bpf": ["*.c", "*.h", "include/**/*.h"],
        "agent": ["arch/*.txt", "demo/golimiter/*", "lab/programs/goapi_source/*", "cli/web/*"],
        "dashboards": ["*.json", "*.yaml", "*.libsonnet"],
    },
    install_requires=[
        "click>=8.1,<9",
        "numpy>=1.26,<3",
        "pyroute2>=0.9.1,<0.10",
        "opentelemetry-exporter-otlp>=1.35,<2",
        "opentelemetry-proto>=1.35,<2",
        "grpcio>=1.63.2,<2",
        "h11>=0.14,<1",
        "protobuf>=5",  # opentelemetry-proto says up to which.
        "googleapis-common-protos>=1.57,<2",
        "duckdb>=1.3,<3",
        "pytz",  # DuckDB asks for it where a query gives a TIMESTAMPTZ: to_timestamp(), now().
        "pyarrow>=18,<27",
        "hiredis>=3,<4",
        "confluent-kafka>=2.6,<3",
        "psycopg2-binary>=2.9.10,<3",
        "PyYAML>=6,<7",
    ],
    extras_require={
        "test": [
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.6,<4",
            "pyte>=0.8.1,<0.9",
            "hypothesis>=6,<7",
            "jsonschema>=4.18,<5",
            "kubernetes-validate>=1.37,<2",
            "ruff>=0.9,<1",
            "mypy>=1.14,<3",
            "setuptools>=68",
            "wheel",
            "redis>=5,<9",
            "amqp>=5.2,<6",
            "celery[redis]>=5.4,<6",
            "limits>=5,<6",
            "prometheus-client>=0.21,<1",
            "uvloop>=0.19,<1",
            "procrastinate>=3.2,<4",
            "pyrate-limiter>=3,<5",
            "aiolimiter>=1.1,<2",
            "throttled-py>=3.5,<4",
            "slowapi>=0.1.9,<0.2",
            "starlette>=0.40,<2",
            "playwright>=1.49,<2",
            "axe-playwright-python>=0.1.4,<0.2",
            "grafana-foundation-sdk>=0.0.16,<0.1",  # not the releases with an epoch, which are of Grafana 10
        ]
    },
    scripts=["agent/cli/tickscope"],  # not what pip would write, which imports more before it can be interrupted
)
