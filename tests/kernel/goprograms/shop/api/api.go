// Package api decides in all the ways in which a limiter is called.
package api

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Server has a limiter for everybody, and one a customer.
type Server struct {
	All       *rate.Limiter
	customers map[string]*rate.Limiter
	mu        sync.Mutex
}

// New has so small a rate that the burst alone counts.
func New() *Server {
	return &Server{All: rate.NewLimiter(rate.Every(time.Hour), 40), customers: map[string]*rate.Limiter{}}
}

// Pay has admit ask, which the compiler puts into it.
//
//go:noinline
func (s *Server) Pay() bool { return s.admit() }

func (s *Server) admit() bool { return s.All.Allow() }

// Customer has a limiter of its own.
//
//go:noinline
func (s *Server) Customer(who string) bool {
	s.mu.Lock()
	one, ok := s.customers[who]
	if !ok {
		one = rate.NewLimiter(rate.Every(time.Hour), 2)
		s.customers[who] = one
	}
	s.mu.Unlock()
	return one.AllowN(time.Now(), 1)
}

// Deep calls itself before it decides.
//
//go:noinline
func (s *Server) Deep(levels int) bool {
	if levels > 0 {
		return s.Deep(levels-1) && levels > 0
	}
	return s.All.AllowN(time.Now(), 1)
}

// Handler decides in a closure that net/http calls.
//
//go:noinline
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !s.All.Allow() {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
}

// Serve has the handler called as a server does.
func Serve(h http.Handler) bool {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code == http.StatusOK
}

// Winding decides behind twelve calls, each of one of two functions: 4096 ways.
func (s *Server) Winding(way int) bool { return s.left(way, 12) }

//go:noinline
func (s *Server) left(way, more int) bool { return s.turn(way, more) && more >= 0 }

//go:noinline
func (s *Server) right(way, more int) bool { return s.turn(way, more) && more >= 0 }

func (s *Server) turn(way, more int) bool {
	if more == 0 {
		return s.All.AllowN(time.Now(), 1)
	}
	if way&1 == 0 {
		return s.left(way>>1, more-1)
	}
	return s.right(way>>1, more-1)
}
