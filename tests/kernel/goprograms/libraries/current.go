//go:build !older

// Libraries whose import path or calls are others in older versions.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

func asTollbooth() call {
	lim := tollbooth.NewLimiter(0.001, nil)
	lim.SetBurst(11)
	return func(i int) {
		d := decision{Start: boottime(), Cost: 1}
		d.Result = name(tollbooth.LimitByKeys(lim, []string{"all"}) == nil)
		record(d)
	}
}

func asThrottled() call {
	store, err := memstore.NewCtx(100)
	check(err)
	lim, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerHour(2), MaxBurst: 6})
	check(err)
	return func(i int) {
		d := decision{Limiter: fmt.Sprintf("throttled.GCRARateLimiter@%p", lim), Key: key(i), Start: boottime(), Cost: int64(1 + i%2)}
		limited, result, err := lim.RateLimitCtx(ctx, d.Key, int(d.Cost))
		check(err)
		d.Result, d.Remaining = name(!limited), int64(result.Remaining)
		record(d)
	}
}

func asUlule() call {
	lim := limiter.New(memory.NewStore(), limiter.Rate{Period: time.Hour, Limit: 5})
	return func(i int) {
		d := decision{Limiter: fmt.Sprintf("limiter.Store@%p", lim.Store), Key: key(i), Start: boottime(), Cost: 1}
		var result limiter.Context
		var err error
		if i%2 == 0 {
			result, err = lim.Get(ctx, d.Key)
		} else {
			d.Cost = 2
			result, err = lim.Increment(ctx, d.Key, 2)
		}
		check(err)
		d.Result, d.Remaining = name(!result.Reached), result.Remaining
		record(d)
	}
}

func asRedisRate() call {
	addr := os.Getenv("REDIS_SOCKET")
	network := map[bool]string{true: "unix", false: "tcp"}[strings.HasPrefix(addr, "/")]
	client := redis.NewClient(&redis.Options{Network: network, Addr: addr, MaxRetries: -1})
	lim := redis_rate.NewLimiter(client)
	limit := redis_rate.PerHour(5)
	return func(i int) {
		d := decision{Key: key(i), Start: boottime(), Cost: 1}
		var result *redis_rate.Result
		var err error
		if i%2 == 0 {
			result, err = lim.Allow(ctx, d.Key, limit)
		} else {
			d.Cost = 2
			result, err = lim.AllowAtMost(ctx, d.Key, limit, 2)
		}
		if err != nil {
			d.Result = "error"
		} else {
			d.Result, d.Remaining = name(result.Allowed > 0), int64(result.Remaining)
		}
		record(d)
	}
}
