// Drives real limiters with given times: JSON cases on stdin, a string of 0 and 1 for each on stdout.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/alibaba/sentinel-golang/core/base"
	statistics "github.com/alibaba/sentinel-golang/core/stat/base"
	"github.com/alibaba/sentinel-golang/util"
	throttled "github.com/throttled/throttled/v2"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
)

type testCase struct {
	Model  string
	PerS   float64 `json:"per_s"`
	Burst  int
	Count  int
	Window int64 `json:"window_ns"`
	Times  []int64
	Costs  []int
}

// The clock that all of them are given.
type clock struct {
	util.Clock
	ns    int64
	slept bool
}

func (c *clock) Now() time.Time            { return time.Unix(0, c.ns) }
func (c *clock) Sleep(time.Duration)       { c.slept = true }
func (c *clock) CurrentTimeMillis() uint64 { return uint64(c.ns / 1e6) }
func (c *clock) CurrentTimeNano() uint64   { return uint64(c.ns) }

// A store of one key for throttled's GCRA.
type store struct {
	clock *clock
	tat   int64
}

func (s *store) GetWithTime(context.Context, string) (int64, time.Time, error) {
	return s.tat, s.clock.Now(), nil
}
func (s *store) SetIfNotExistsWithTTL(_ context.Context, _ string, value int64, _ time.Duration) (bool, error) {
	s.tat = value
	return true, nil
}
func (s *store) CompareAndSwapWithTTL(_ context.Context, _ string, _, value int64, _ time.Duration) (bool, error) {
	s.tat = value
	return true, nil
}

// A ring of slots as people write it.
type slidingWindow struct {
	slots  [10]struct{ at, n int64 }
	length time.Duration
	limit  int64
}

//go:noinline
func (w *slidingWindow) Inc(now time.Time, n int64) bool {
	at := now.UnixNano() / int64(w.length/10)
	slot := &w.slots[at%10]
	if slot.at != at {
		slot.at, slot.n = at, 0
	}
	var used int64
	for _, s := range w.slots {
		if s.at > at-10 {
			used += s.n
		}
	}
	if used+n > w.limit {
		return false
	}
	slot.n += n
	return true
}

func fail(err error) {
	if err != nil {
		panic(err)
	}
}

func decider(c testCase, now *clock) func(n int) bool {
	switch c.Model {
	case "token bucket", "token bucket, first generation":
		l := rate.NewLimiter(rate.Limit(c.PerS), c.Burst)
		return func(n int) bool { return l.AllowN(now.Now(), n) }
	case "GCRA":
		l, err := throttled.NewGCRARateLimiterCtx(&store{now, -1}, throttled.RateQuota{MaxRate: throttled.PerSec(int(c.PerS)), MaxBurst: c.Burst - 1})
		fail(err)
		return func(n int) bool {
			limited, _, err := l.RateLimitCtx(context.Background(), "", n)
			fail(err)
			return !limited
		}
	case "leaky bucket, waits":
		l := ratelimit.New(int(c.PerS), ratelimit.WithSlack(c.Burst-1), ratelimit.WithClock(now))
		return func(int) bool {
			now.slept = false
			l.Take()
			return !now.slept
		}
	case "sliding window of slots":
		l := &slidingWindow{length: time.Duration(c.Window), limit: int64(c.Count)}
		return func(n int) bool { return l.Inc(now.Now(), int64(n)) }
	case "leap array": // a resource's statistics by default, and what flow.RejectTrafficShapingChecker and stat.Slot do with them
		util.SetClock(now)
		kept := statistics.NewBucketLeapArray(20, 10000)
		read, err := statistics.NewSlidingWindowMetric(2, 1000, kept)
		fail(err)
		return func(n int) bool {
			if float64(read.GetSum(base.MetricEventPass))+float64(n) > float64(c.Count) {
				return false
			}
			kept.AddCount(base.MetricEventPass, int64(n))
			return true
		}
	}
	panic("no model " + c.Model)
}

func main() {
	if len(os.Args) > 1 {
		perS, err := strconv.ParseFloat(os.Args[1], 64)
		fail(err)
		live(perS)
		return
	}
	var cases []testCase
	fail(json.NewDecoder(os.Stdin).Decode(&cases))
	now := &clock{Clock: util.NewRealClock(), ns: 1}
	for _, c := range cases {
		now.ns = c.Times[0]
		decide := decider(c, now)
		out := make([]byte, len(c.Times))
		for i, ns := range c.Times {
			now.ns = ns
			n := 1
			if c.Costs != nil {
				n = c.Costs[i]
			}
			out[i] = '0'
			if decide(n) {
				out[i] = '1'
			}
		}
		fmt.Println(string(out))
	}
}
