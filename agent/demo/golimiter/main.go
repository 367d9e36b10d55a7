// A program that limits itself with golang.org/x/time/rate and knows nothing of who watches it.
package main

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

func main() {
	requests := rate.NewLimiter(20, 5)
	jobs := rate.NewLimiter(10, 1)
	go func() {
		for {
			if err := jobs.Wait(context.Background()); err != nil {
				panic(err)
			}
		}
	}()
	for {
		requests.Allow()
		time.Sleep(40 * time.Millisecond)
	}
}
