// Takes decisions of golang.org/x/time/rate and prints what it saw of them, one JSON document, as the truth for the tests.
//
// limits MODE COUNT [now]: starts at once with "now", else after a line on stdin; ends after another line on stdin, so that
// the process can be looked at. Times are CLOCK_BOOTTIME ns.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/time/rate"
)

type decision struct {
	Limiter string `json:"limiter"`
	Result  string `json:"result"`
	Start   int64  `json:"start_ns"`
	End     int64  `json:"end_ns"`
	Wall    int64  `json:"wall_ns"`
	Wait    int64  `json:"wait_ns"`
	Cost    int    `json:"cost"`
}

var (
	mu   sync.Mutex
	seen = []decision{}
)

func boottime() int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func record(lim *rate.Limiter, start int64, result string, wall int64, wait time.Duration, cost int) {
	end := boottime()
	mu.Lock()
	seen = append(seen, decision{fmt.Sprintf("rate.Limiter@%p", lim), result, start, end, wall, int64(wait), cost})
	mu.Unlock()
}

func name(ok bool) string {
	if ok {
		return "allowed"
	}
	return "refused"
}

func allow(lim *rate.Limiter, now time.Time) {
	start := boottime()
	record(lim, start, name(lim.AllowN(now, 1)), now.UnixNano(), 0, 1)
}

func reserve(lim *rate.Limiter, n int) {
	now := time.Now()
	start := boottime()
	r := lim.ReserveN(now, n)
	if !r.OK() {
		record(lim, start, "refused", now.UnixNano(), 0, n)
		return
	}
	wait := r.DelayFrom(now)
	if wait > 0 {
		record(lim, start, "delayed", now.UnixNano(), wait, n)
	} else {
		record(lim, start, "allowed", now.UnixNano(), 0, n)
	}
}

// ask goes through only where it need not wait for more than 3 ms, as a proxy does: else it gives its reservation back.
func ask(lim *rate.Limiter, n int) {
	now := time.Now()
	start := boottime()
	r := lim.ReserveN(now, n)
	wait := r.DelayFrom(now)
	switch {
	case wait > 3*time.Millisecond:
		r.Cancel()
		record(lim, start, "refused", now.UnixNano(), 0, n)
	case wait > 0:
		record(lim, start, "delayed", now.UnixNano(), wait, n)
	default:
		record(lim, start, "allowed", now.UnixNano(), 0, n)
	}
}

// wait goes round the four ways in which Wait can end.
func wait(lim *rate.Limiter, i int) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 1
	switch i % 4 {
	case 1:
		n = lim.Burst() + 1 // refused before reserveN
	case 2:
		cancel() // as well
	case 3:
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), time.Microsecond) // mostly refused by reserveN
	}
	defer cancel()
	start := boottime()
	record(lim, start, ended(lim.WaitN(ctx, n)), 0, 0, n)
}

// ended says how a Wait ended, as its caller is told.
func ended(err error) string {
	switch err {
	case nil:
		return "passed"
	case context.Canceled, context.DeadlineExceeded:
		return "cancelled"
	}
	return "refused"
}

// sleep waits for a token that comes in (i%3+1) * 200 ms: every third caller gives up after 20 ms, every third has a deadline that is too near.
func sleep(i int) {
	lim := rate.NewLimiter(rate.Every(time.Duration(i%3+1)*200*time.Millisecond), 1)
	lim.Allow()
	ctx, cancel := context.WithCancel(context.Background())
	switch i % 3 {
	case 1:
		go func() { time.Sleep(20 * time.Millisecond); cancel() }()
	case 2:
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	}
	defer cancel()
	start := boottime()
	record(lim, start, ended(lim.Wait(ctx)), 0, 0, 1)
}

func many(count int) {
	lim := rate.NewLimiter(1, 53)
	var group sync.WaitGroup
	for i := 0; i < count; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			if i%2 == 0 {
				runtime.LockOSThread() // a thread of its own, which ends with the goroutine
			}
			time.Sleep(time.Duration(i%7) * time.Millisecond)
			allow(lim, time.Now())
		}(i)
	}
	group.Wait()
}

//go:noinline
func deep(n int, lim *rate.Limiter) int {
	var room [512]byte
	room[n%512] = 1
	if n == 0 {
		allow(lim, time.Now())
		return int(room[1])
	}
	return deep(n-1, lim) + int(room[2])
}

func run(mode string, count int) {
	switch mode {
	case "allow":
		lim := rate.NewLimiter(rate.Every(time.Hour), 500)
		for i := 0; i < count; i++ {
			allow(lim, time.Now())
		}
	case "many":
		many(count)
	case "stacks": // small new stacks that grow, also within reserveN's prologue
		lim := rate.NewLimiter(1, 7)
		for i := 0; i < count; i++ {
			done := make(chan bool)
			go func(i int) { deep(i%97, lim); done <- true }(i)
			<-done
		}
	case "reserve":
		lim := rate.NewLimiter(200, 3)
		for i := 0; i < count; i++ {
			reserve(lim, 1+i%5)
		}
	case "ask": // two limiters in turn, one behind the other
		first, second := rate.NewLimiter(400, 2), rate.NewLimiter(300, 3)
		for i := 0; i < count; i += 2 {
			ask(first, 1)
			ask(second, 1)
			time.Sleep(time.Duration(i%3) * time.Millisecond)
		}
	case "wait":
		lim := rate.NewLimiter(50, 2) // slow enough that an emulated machine is delayed too
		for i := 0; i < count; i++ {
			wait(lim, i)
		}
	case "sleep": // a goroutine and a limiter each
		var group sync.WaitGroup
		for i := 0; i < count; i++ {
			group.Add(1)
			go func(i int) { defer group.Done(); sleep(i) }(i)
		}
		group.Wait()
	case "doze": // each call but the first sleeps a second longer
		lim := rate.NewLimiter(1, 1)
		for i := 0; i < count; i++ {
			wait(lim, 0)
		}
	case "utc":
		lim := rate.NewLimiter(10, 11)
		for i := 0; i < count; i++ {
			allow(lim, time.Now().UTC().Round(0))
		}
	case "several":
		limiters := []*rate.Limiter{rate.NewLimiter(3, 5), rate.NewLimiter(0.25, 7), rate.NewLimiter(rate.Inf, 0)}
		for i := 0; i < count; i++ {
			allow(limiters[i%len(limiters)], time.Now())
		}
	case "panic": // decisions that never end: a nil limiter, recovered
		lim := rate.NewLimiter(1, 5)
		for i := 0; i < count; i++ {
			func() {
				defer func() { _ = recover() }()
				var none *rate.Limiter
				none.AllowN(time.Now(), 1)
			}()
			allow(lim, time.Now())
		}
	case "busy": // 40,000 a second, for so many ms, not recorded
		lim := rate.NewLimiter(1, 1)
		end := time.Now().Add(time.Duration(count) * time.Millisecond)
		for time.Now().Before(end) {
			for i := 0; i < 200; i++ {
				lim.Allow()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func main() {
	in := bufio.NewReader(os.Stdin)
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	if len(os.Args) < 4 {
		_, _ = in.ReadString('\n')
	}
	run(os.Args[1], count)
	out := map[string]interface{}{"pid": os.Getpid(), "decisions": seen}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		panic(err)
	}
	_, _ = in.ReadString('\n')
}
