// An API that limits its callers with golang.org/x/time/rate and asks an upstream for each request. It knows nothing of who watches it.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/time/rate"
)

func main() {
	address, upstream, resolver := os.Args[1], os.Args[2], os.Args[3]
	requests := rate.NewLimiter(30, 10)
	dialer := &net.Dialer{Timeout: 10 * time.Second, Resolver: &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, resolver)
		}}}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	handler := func(w http.ResponseWriter, r *http.Request) {
		if err := requests.Wait(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		answer, err := client.Get(upstream)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		io.Copy(w, answer.Body)
	}
	if err := http.ListenAndServe(address, http.HandlerFunc(handler)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
