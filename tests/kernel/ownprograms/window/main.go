// A sliding window of ten slots of 100 ms, lazily cleared. Reads a number from each line of stdin and asks that often, by so many goroutines at a time as its
// argument says; says itself, a line each, what was decided.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

const slots, slotNs = 10, 100_000_000

type Limits struct{ Most int }

type SlidingWindow struct {
	mu     sync.Mutex
	limits *Limits
	slot   [slots]int64
	counts [slots]int
}

// Inc returns what is left, and whether it was let through.
//
//go:noinline
func (w *SlidingWindow) Inc(key string, cost int) (int, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now().UnixNano() / slotNs
	sum := 0
	for i, at := range w.slot {
		if at > now-slots {
			sum += w.counts[i]
		}
	}
	if sum+cost > w.limits.Most {
		return w.limits.Most - sum, false
	}
	if w.slot[now%slots] != now {
		w.slot[now%slots], w.counts[now%slots] = now, 0
	}
	w.counts[now%slots] += cost
	return w.limits.Most - sum - cost, true
}

func main() {
	threads, _ := strconv.Atoi(os.Args[1])
	window := &SlidingWindow{limits: &Limits{Most: 17}}
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		count, _ := strconv.Atoi(lines.Text())
		lines := make([]string, count)
		var group sync.WaitGroup
		for t := 0; t < threads; t++ {
			group.Add(1)
			go func(t int) {
				defer group.Done()
				for i := t; i < count; i += threads {
					key, cost := fmt.Sprintf("account %d", i%7), 1+i%2
					left, ok := window.Inc(key, cost)
					lines[i] = fmt.Sprintf("%s %d %s %d", map[bool]string{true: "allowed", false: "refused"}[ok], cost, key, left)
				}
			}(t)
		}
		group.Wait()
		for _, line := range lines {
			fmt.Println(line)
		}
		fmt.Println("done")
	}
}
