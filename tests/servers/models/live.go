package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
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

// Decides as long as asked by the real wall clock, so often a second for each limiter, and prints what each was given and what it said: name, CLOCK_BOOTTIME
// just before, the wall clock's reading that it decided by (ns), 0 or 1.
func live(seconds, perS float64) {
	out := bufio.NewWriter(os.Stdout)
	var one sync.Mutex
	said := func(name string, boot int64, now time.Time, yes bool) {
		one.Lock()
		defer one.Unlock()
		word := 0
		if yes {
			word = 1
		}
		fmt.Fprintln(out, name, boot, now.UnixNano(), word)
	}
	bucket := rate.NewLimiter(livePerS, liveBurst)
	window := &slidingWindow{length: time.Second, limit: liveWindow}
	uber := ratelimit.New(uberPerS, ratelimit.WithoutSlack)
	begin := time.Now() // with its monotonic reading: the timetable knows no steps
	var running sync.WaitGroup
	running.Add(2)
	go func() { // who waits for uber's limiter comes later
		defer running.Done()
		for time.Since(begin).Seconds() < seconds {
			boot, before := bootNs(), time.Now()
			uber.Take()
			said("uber", boot, before, true)
			time.Sleep(time.Duration(float64(time.Second) / perS))
		}
	}()
	go func() {
		defer running.Done()
		for i := 0; time.Since(begin).Seconds() < seconds; i++ {
			time.Sleep(time.Until(begin.Add(time.Duration(float64(i) / perS * float64(time.Second)))))
			boot, now := bootNs(), time.Now().UTC()
			said("bucket", boot, now, bucket.AllowN(now, 1))
			boot, now = bootNs(), time.Now().UTC()
			said("window", boot, now, window.Inc(now, 1))
		}
	}()
	running.Wait()
	fail(out.Flush())
}

func liveArgs(args []string) {
	seconds, err := strconv.ParseFloat(args[0], 64)
	fail(err)
	perS, err := strconv.ParseFloat(args[1], 64)
	fail(err)
	live(seconds, perS)
}
