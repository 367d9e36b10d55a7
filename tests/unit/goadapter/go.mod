module example.com/goadapter

go 1.19

require (
	github.com/juju/ratelimit v1.0.2
	github.com/sethvargo/go-limiter v0.7.1
	golang.org/x/time v0.3.0
)
