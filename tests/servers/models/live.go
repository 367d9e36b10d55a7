package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
)

// Limits of the live ones; tests/vm/guest_steps.py reads them off the rows.
const (
	livePerS, liveBurst, liveWindow = 10, 10, 10
	uberPerS                        = 40
)

func bootNs() int64 {
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

// Decides by the real wall clock until stdin ends, so often a second for each limiter, and prints what each was given and what it said: name, CLOCK_BOOTTIME
// just before, the wall clock's reading that it decided by, or just before (ns), and 0 or 1; of uber's, whose callers wait, when it let go.
func live(perS float64) {
	out := bufio.NewWriter(os.Stdout)
	var one sync.Mutex
	report := func(name string, boot int64, now time.Time, word int64) {
		one.Lock()
		defer one.Unlock()
		fmt.Fprintln(out, name, boot, now.UnixNano(), word)
	}
	allowed := map[bool]int64{true: 1}
	bucket := rate.NewLimiter(livePerS, liveBurst)
	window := &slidingWindow{length: time.Second, limit: liveWindow}
	uber := ratelimit.New(uberPerS, ratelimit.WithoutSlack)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	begin := time.Now() // with its monotonic reading: the timetable knows no steps
	for i := 0; ; i++ {
		select {
		case <-ended:
			one.Lock() // for good: who still waits is not reported
			fail(out.Flush())
			return
		case <-time.After(time.Until(begin.Add(time.Duration(float64(i) / perS * float64(time.Second))))):
		}
		boot, now := bootNs(), time.Now().UTC()
		report("bucket", boot, now, allowed[bucket.AllowN(now, 1)])
		boot, now = bootNs(), time.Now().UTC()
		report("ring", boot, now, allowed[window.Inc(now, 1)])
		go func() { // others come meanwhile, as they would without the wait
			boot, now := bootNs(), time.Now()
			report("uber", boot, now, uber.Take().UnixNano())
		}()
	}
}
