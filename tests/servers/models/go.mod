module models

go 1.17

require (
	github.com/alibaba/sentinel-golang v1.0.4
	github.com/throttled/throttled/v2 v2.13.0
	go.uber.org/ratelimit v0.3.1
	golang.org/x/time v0.3.0
)

require (
	github.com/benbjohnson/clock v1.3.0 // indirect
	github.com/google/uuid v1.1.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
)
