// Takes decisions of limiter libraries and prints what they said, one JSON document, as the truth for the tests.
//
// libraries MODE COUNT [now]: starts at once with "now", else after a line on stdin; ends after another line on stdin. Times are
// CLOCK_BOOTTIME ns, until_ns is Unix.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	sentinel "github.com/alibaba/sentinel-golang/api"
	"github.com/alibaba/sentinel-golang/core/flow"
	"github.com/alibaba/sentinel-golang/logging"
	juju "github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	uber "go.uber.org/ratelimit"
)

type decision struct {
	Limiter   string `json:"limiter"`
	Key       string `json:"key"`
	Result    string `json:"result"`
	Start     int64  `json:"start_ns"`
	End       int64  `json:"end_ns"`
	Wait      int64  `json:"wait_ns"`
	Until     int64  `json:"until_ns"`
	Cost      int64  `json:"cost"`
	Remaining int64  `json:"remaining"`
}

var (
	mu   sync.Mutex
	seen = []decision{}
	ctx  = context.Background()
)

func boottime() int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func record(d decision) {
	d.End = boottime()
	mu.Lock()
	seen = append(seen, d)
	mu.Unlock()
}

func name(ok bool) string {
	if ok {
		return "allowed"
	}
	return "refused"
}

func delayed(wait time.Duration) string {
	if wait > 0 {
		return "delayed"
	}
	return "allowed"
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type call func(i int)

// asUber takes one of 100 a second; every fifth call comes late enough not to be delayed. Whether it slept follows from when it let go: one period after the one before.
func asUber() call {
	lim := uber.New(100, uber.WithoutSlack)
	return func(i int) {
		if i%5 == 4 {
			time.Sleep(25 * time.Millisecond)
		}
		d := decision{Limiter: fmt.Sprintf("ratelimit.Limiter@%p", lim), Start: boottime(), Cost: 1}
		d.Until = lim.Take().UnixNano()
		record(d)
	}
}

func asJuju() call {
	b := juju.NewBucket(time.Hour, 7)
	f := juju.NewBucketWithQuantum(20*time.Millisecond, 3, 2)
	return func(i int) {
		d := decision{Limiter: fmt.Sprintf("ratelimit.Bucket@%p", b), Start: boottime(), Cost: int64(1 + i%3)}
		switch i % 5 {
		case 0:
			took := b.TakeAvailable(d.Cost)
			d.Result = name(took > 0)
		case 1:
			wait, ok := b.TakeMaxDuration(d.Cost, time.Second)
			d.Result, d.Wait = name(ok), int64(wait)
		case 2:
			d.Limiter = fmt.Sprintf("ratelimit.Bucket@%p", f)
			wait := f.Take(d.Cost)
			d.Result, d.Wait = delayed(wait), int64(wait)
		case 3:
			d.Limiter, d.Result = fmt.Sprintf("ratelimit.Bucket@%p", f), "passed"
			f.Wait(d.Cost)
		case 4:
			d.Limiter = fmt.Sprintf("ratelimit.Bucket@%p", f)
			d.Result = map[bool]string{true: "passed", false: "refused"}[f.WaitMaxDuration(d.Cost, 10*time.Millisecond)]
		}
		record(d)
	}
}

func key(i int) string {
	return []string{"customer 17", "10.1.2.3", strings.Repeat("long ", 40)}[i%3]
}

func asGoLimiter() call {
	store, err := memorystore.New(&memorystore.Config{Tokens: 5, Interval: time.Hour})
	check(err)
	return func(i int) {
		d := decision{Limiter: fmt.Sprintf("memorystore.store@%p", store), Key: key(i), Start: boottime(), Cost: 1}
		_, left, _, ok, err := store.Take(ctx, d.Key)
		check(err)
		d.Result, d.Remaining = name(ok), int64(left)
		record(d)
	}
}

// asSentinel asks resources with a rule of 5 an hour each.
func asSentinel() call {
	logging.ResetGlobalLoggerLevel(logging.ErrorLevel) // it logs to stdout
	var rules []*flow.Rule
	for i := 0; i < 3; i++ {
		rules = append(rules, &flow.Rule{Resource: key(i), Threshold: 5, StatIntervalInMs: 3600000})
	}
	_, err := flow.LoadRules(rules)
	check(err)
	return func(i int) {
		d := decision{Key: key(i), Start: boottime(), Cost: int64(1 + i%2)}
		entry, blocked := sentinel.Entry(d.Key, sentinel.WithBatchCount(uint32(d.Cost)), sentinel.WithFlag(7))
		d.Result = name(blocked == nil)
		record(d)
		if blocked == nil {
			entry.Exit()
		}
	}
}

// asPaced asks a resource whose rule lets one go each 10 ms, and refuses who would wait for more than 25.
func asPaced() call {
	logging.ResetGlobalLoggerLevel(logging.ErrorLevel)
	_, err := flow.LoadRules([]*flow.Rule{{Resource: "paced", Threshold: 100, ControlBehavior: flow.Throttling, MaxQueueingTimeMs: 25}})
	check(err)
	return func(i int) {
		d := decision{Key: "paced", Start: boottime(), Cost: 1}
		_, blocked := sentinel.Entry(d.Key)
		d.Result = name(blocked == nil)
		record(d)
	}
}

var modes = map[string]func() call{
	"uber": asUber, "juju": asJuju, "tollbooth": asTollbooth, "throttled": asThrottled, "ulule": asUlule, "golimiter": asGoLimiter, "redis": asRedisRate,
	"sentinel": asSentinel, "paced": asPaced,
}

// MODE@50: by so many goroutines at once.
func run(mode string, count int) {
	mode, many, _ := strings.Cut(mode, "@")
	one := modes[mode]()
	if many == "" {
		for i := 0; i < count; i++ {
			one(i)
		}
		return
	}
	routines, err := strconv.Atoi(many)
	check(err)
	next := make(chan int, count)
	for i := 0; i < count; i++ {
		next <- i
	}
	close(next)
	var group sync.WaitGroup
	for i := 0; i < routines; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range next {
				runtime.Gosched() // others' turn: one goroutine could take all of a fast limiter's
				one(i)
			}
		}()
	}
	group.Wait()
}

func main() {
	in := bufio.NewReader(os.Stdin)
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	if len(os.Args) < 4 {
		_, _ = in.ReadString('\n')
	}
	run(os.Args[1], count)
	check(json.NewEncoder(os.Stdout).Encode(map[string]interface{}{"pid": os.Getpid(), "decisions": seen}))
	_, _ = in.ReadString('\n')
}
