#!/bin/sh
# Builds the OpenTelemetry Collector of the tests once and prints the path of the binary.
# Exit status: 0 built or cached; 3 no Go, or older than 1.24 (the reason is on stderr); 1 the build failed.
# The cache is keyed by the builder's version and its configuration: $XDG_CACHE_HOME/tickscope or ~/.cache/tickscope.
set -eu

builder_version=v0.139.0
here=$(cd "$(dirname "$0")" && pwd)

command -v go >/dev/null 2>&1 || { echo "no go command: install golang-go 1.24 or newer" >&2; exit 3; }
go_version=$(cd / && GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//; s/[^0-9.].*//')
major=${go_version%%.*}
rest=${go_version#*.}
minor=${rest%%.*}
if [ "$major" -eq 1 ] && [ "$minor" -lt 24 ]; then
    echo "go $go_version is older than 1.24, which the collector needs" >&2
    exit 3
fi

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/tickscope/collector
key=$( (echo "$builder_version"; cat "$here/builder.yaml") | sha256sum | cut -c1-16)
binary=$cache/otelcol-$key
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

if [ ! -x "$binary" ]; then
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    export GOFLAGS=-mod=mod CGO_ENABLED=0
    echo "building the collector, once: some minutes" >&2
    (cd "$work" && GOBIN="$work/bin" nice -n 10 go install "go.opentelemetry.io/collector/cmd/builder@$builder_version") >&2
    sed "s|^  name:|  output_path: $work/src\n  name:|" "$here/builder.yaml" > "$work/builder.yaml"
    # The builder names itself as the producer in go.mod and runs `go build` with its own flags; it leaves a folder in TMPDIR.
    mkdir "$work/tmp"
    TMPDIR=$work/tmp nice -n 10 "$work/bin/builder" --config "$work/builder.yaml" >&2
    mv "$work/src/tickscope-otelcol" "$binary"
fi
echo "$binary"
