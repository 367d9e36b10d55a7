module example.com/tickscope/libraries

go 1.21

require (
	github.com/alibaba/sentinel-golang v1.0.0
	github.com/didip/tollbooth/v6 v6.1.2
	github.com/didip/tollbooth/v8 v8.0.1
	github.com/go-redis/redis/v8 v8.11.4
	github.com/go-redis/redis_rate/v10 v10.0.1
	github.com/go-redis/redis_rate/v9 v9.1.2
	github.com/juju/ratelimit v1.0.1
	github.com/redis/go-redis/v9 v9.0.5
	github.com/sethvargo/go-limiter v0.7.1
	github.com/throttled/throttled v2.2.5+incompatible
	github.com/throttled/throttled/v2 v2.15.0
	github.com/ulule/limiter/v3 v3.0.0
	go.uber.org/ratelimit v0.1.0
)

require (
	github.com/StackExchange/wmi v1.2.1 // indirect
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/go-ole/go-ole v1.2.5 // indirect
	github.com/go-pkgz/expirable-cache v0.0.3 // indirect
	github.com/go-pkgz/expirable-cache/v3 v3.0.0 // indirect
	github.com/google/uuid v1.1.1 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/shirou/gopsutil v3.20.11-0.20201116082039-2fb5da2f2449+incompatible // indirect
	golang.org/x/sys v0.6.0 // indirect
	golang.org/x/time v0.0.0-20200416051211-89c76fbcd5d1 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
)
