// Asks limiters of golang.org/x/time/rate as often as it is told to, and prints what it was answered, as the truth for tests and benchmarks.
//
// hot -callers N -rate R -work NS -limit L -burst B -limiters K -turns S -for SECONDS: begins after a line on stdin, stops after that time or another line, prints one JSON
// document, and ends after one line more.
// rate: calls a second of all callers together, on a schedule that does not wait for the answers (an open loop); 0: each caller asks again when
// it has its answer and has worked for so long (a closed loop).
// limiters: of which each caller has one, and several callers may have the same. turns: each so many seconds the limits are halved or doubled (SetLimit).
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

type result struct {
	Pid     int     `json:"pid"`
	Limiter string  `json:"limiter"`
	Allowed int64   `json:"allowed"`
	Refused int64   `json:"refused"`
	Seconds float64 `json:"seconds"`
	Each    []each  `json:"each"`
}

type each struct {
	Limiter string `json:"limiter"`
	Allowed int64  `json:"allowed"`
	Refused int64  `json:"refused"`
}

func work(ns int64) {
	if ns > 0 {
		for start := time.Now(); time.Since(start).Nanoseconds() < ns; {
		}
	}
}

// ask is not inlined, so that a closed loop is a call of Allow and nothing else.
func ask(lim *rate.Limiter, calls int64, ns int64, allowed, refused *int64) {
	for i := int64(0); i < calls; i++ {
		if lim.Allow() {
			*allowed++
		} else {
			*refused++
		}
		work(ns)
	}
}

func main() {
	callers := flag.Int("callers", 1, "")
	perS := flag.Float64("rate", 0, "")
	workNs := flag.Int64("work", 0, "")
	limit := flag.Float64("limit", 1000, "")
	burst := flag.Int("burst", 100, "")
	limiters := flag.Int("limiters", 1, "")
	turns := flag.Float64("turns", 0, "")
	forS := flag.Float64("for", 5, "")
	flag.Parse()
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	lims := make([]*rate.Limiter, *limiters)
	out := result{Pid: os.Getpid(), Each: make([]each, *limiters)}
	for i := range lims {
		lims[i] = rate.NewLimiter(rate.Limit(*limit), *burst)
		out.Each[i].Limiter = fmt.Sprintf("rate.Limiter@%p", lims[i])
	}
	out.Limiter = out.Each[0].Limiter
	line := make(chan bool)
	go func() {
		for {
			_, err := in.ReadString('\n')
			line <- true
			if err != nil {
				close(line)
				return
			}
		}
	}()
	begun := time.Now()
	end := begun.Add(time.Duration(*forS * 1e9))
	var group sync.WaitGroup
	var mu sync.Mutex
	var stop atomic.Bool
	stopped := make(chan bool)
	for g := 0; g < *callers; g++ {
		group.Add(1)
		lim, mine := lims[g%*limiters], &out.Each[g%*limiters]
		go func() {
			defer group.Done()
			var allowed, refused int64
			for now := time.Now(); now.Before(end) && !stop.Load(); now = time.Now() {
				if *perS == 0 {
					ask(lim, 100, *workNs, &allowed, &refused)
					continue
				}
				due := int64(*perS / float64(*callers) * now.Sub(begun).Seconds())
				ask(lim, due-allowed-refused, *workNs, &allowed, &refused)
				time.Sleep(time.Millisecond)
			}
			mu.Lock()
			out.Allowed += allowed
			out.Refused += refused
			mine.Allowed += allowed
			mine.Refused += refused
			mu.Unlock()
		}()
	}
	go func() { group.Wait(); close(stopped) }()
	if *turns > 0 {
		go func() {
			for high := false; ; high = !high {
				time.Sleep(time.Duration(*turns * 1e9))
				for _, lim := range lims {
					if high {
						lim.SetLimit(rate.Limit(*limit))
					} else {
						lim.SetLimit(rate.Limit(*limit / 2))
					}
				}
			}
		}()
	}
	select {
	case <-line:
		stop.Store(true)
		<-stopped
	case <-stopped:
	}
	out.Seconds = time.Since(begun).Seconds()
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		panic(err)
	}
	<-line
}
