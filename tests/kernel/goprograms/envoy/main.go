// Envoy's rate limit service, as its own main has it.
package main

import (
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
)

func main() {
	one := runner.NewRunner(settings.NewSettings())
	one.Run()
}
