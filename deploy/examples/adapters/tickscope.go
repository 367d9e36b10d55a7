//go:build unix

// Package tickscope reports to tickscope what a rate limiter decides. Copy this file into a directory tickscope of your module, then wrap what you limit:
//
//	http.Handle("/pay", tickscope.Handler("pay", pay, func(r *http.Request) (bool, tickscope.Fields) {
//		return limiter.Allow(), tickscope.Fields{"limit_per_s": limiter.Limit(), "burst": limiter.Burst(), "remaining": limiter.Tokens()}
//	}))
//
// Standard library only, Go 1.19 or newer. No caller waits for tickscope; where there is no agent, decisions are counted.
package tickscope

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Fields of a decision, as in tickscope's docs/limiters-reference.md: key, cost, limit_per_s, burst, remaining, window_ns ...
type Fields map[string]any

// Path of the socket that the agent listens to.
var Path = "/run/tickscope/intake.seq.sock"

// Between two attempts to find an agent.
const pause = 100 * time.Millisecond

var reporter struct {
	sync.Mutex
	conn    *net.UnixConn
	again   time.Time
	dropped int
}

// Dropped is how many decisions could not be sent so far; the next that can reports it, and it is 0 again.
func Dropped() int {
	reporter.Lock()
	defer reporter.Unlock()
	return reporter.dropped
}

// Report reports one decision: result is allowed, refused, delayed, error or cancelled. It waits for nobody.
func Report(limiter, result string, more Fields) {
	reporter.Lock()
	defer reporter.Unlock()
	reporter.dropped++ // unless it comes to its end
	defer func() { _ = recover() }()
	message := Fields{"dropped": reporter.dropped - 1}
	for name, value := range more {
		if text, ok := value.(string); ok && len(text) > 500 {
			value = text[:500]
		}
		message[name] = value
	}
	message["limiter"], message["result"] = limiter, result
	data, err := json.Marshal(message)
	if err == nil && send(data) == nil {
		reporter.dropped = 0
	}
}

func send(data []byte) (err error) {
	for try := 0; try < 2; try++ { // an agent that was started again is found at once
		if reporter.conn == nil {
			now := time.Now()
			if now.Before(reporter.again) {
				return syscall.ENOTCONN
			}
			reporter.again = now.Add(pause)
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: Path, Net: "unixpacket"})
			if err != nil {
				return err
			}
			reporter.conn, reporter.again = conn, time.Time{}
		}
		raw, failed := reporter.conn.SyscallConn()
		if failed == nil {
			failed = raw.Write(func(fd uintptr) bool {
				_, err = syscall.Write(int(fd), data)
				return true // never waits until it is writable
			})
		}
		if failed == nil && (err == nil || errors.Is(err, syscall.EAGAIN)) { // sent, or the agent is behind
			return err
		}
		reporter.conn.Close()
		reporter.conn = nil
	}
	return syscall.ENOTCONN
}

// Decide asks a limiter, reports its answer with the time that it took, and returns the answer.
func Decide(limiter string, ask func() (result string, more Fields)) string {
	began := time.Now()
	result, more := ask()
	all := Fields{"duration_ns": time.Since(began).Nanoseconds()}
	for name, value := range more {
		all[name] = value
	}
	Report(limiter, result, all)
	return result
}

// Handler lets requests through to next as the limiter allows, and answers the others with 429. The key is the client's address unless ask says another.
func Handler(limiter string, next http.Handler, ask func(*http.Request) (allowed bool, more Fields)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := Decide(limiter, func() (string, Fields) {
			allowed, more := ask(r)
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			all := Fields{"key": host}
			for name, value := range more {
				all[name] = value
			}
			if allowed {
				return "allowed", all
			}
			return "refused", all
		})
		if result == "allowed" {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
	})
}
