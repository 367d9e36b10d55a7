// Real limiters behind the adapter for Go, asked by real requests: program SOCKET. Reads lines LIMITER COUNT, asks so often, and says what was answered.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"time"

	"example.com/goadapter/tickscope"
	"github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"
)

func limiters() map[string]func(*http.Request) (bool, tickscope.Fields) {
	plain := rate.NewLimiter(rate.Every(time.Hour), 5)
	bucket := ratelimit.NewBucket(time.Hour, 5)
	store, err := memorystore.New(&memorystore.Config{Tokens: 5, Interval: time.Hour})
	if err != nil {
		panic(err)
	}
	return map[string]func(*http.Request) (bool, tickscope.Fields){
		"rate": func(*http.Request) (bool, tickscope.Fields) {
			return plain.Allow(), tickscope.Fields{"limit_per_s": plain.Limit(), "burst": plain.Burst(), "remaining": plain.Tokens()}
		},
		"store": func(r *http.Request) (bool, tickscope.Fields) {
			key := r.Header.Get("X-Customer")
			limit, left, _, ok, _ := store.Take(r.Context(), key)
			return ok, tickscope.Fields{"key": key, "burst": limit, "remaining": left, "library": "github.com/sethvargo/go-limiter", "library_version": "v0.7.1"}
		},
		"juju": func(*http.Request) (bool, tickscope.Fields) {
			taken := bucket.TakeAvailable(1)
			return taken == 1, tickscope.Fields{"limit_per_s": bucket.Rate(), "burst": bucket.Capacity(), "remaining": bucket.Available()}
		},
	}
}

func main() {
	tickscope.Path = os.Args[1]
	handlers := map[string]http.Handler{}
	done := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "done") })
	for name, ask := range limiters() {
		handlers[name] = tickscope.Handler(name, done, ask)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var name string
		var count int
		fmt.Sscan(lines.Text(), &name, &count)
		allowed := 0
		switch name {
		case "bad": // nothing that JSON has
			for i := 0; i < count; i++ {
				tickscope.Report("bad", "allowed", tickscope.Fields{"key": func() {}})
			}
		case "crowd": // many goroutines, one connection
			var group sync.WaitGroup
			for i := 0; i < count; i++ {
				group.Add(1)
				go func() {
					defer group.Done()
					tickscope.Decide("crowd", func() (string, tickscope.Fields) { return "delayed", nil })
				}()
			}
			group.Wait()
		default:
			for i := 0; i < count; i++ {
				request := httptest.NewRequest("GET", "/pay", nil).WithContext(context.Background())
				request.Header.Set("X-Customer", "customer 17")
				answer := httptest.NewRecorder()
				handlers[name].ServeHTTP(answer, request)
				if answer.Code == http.StatusOK {
					allowed++
				}
			}
		}
		fmt.Println(allowed, tickscope.Dropped())
	}
}
