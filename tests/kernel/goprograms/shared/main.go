// A shared library in Go with a limiter, for programs of other languages (-buildmode=c-shared).
package main

import "C"
import "golang.org/x/time/rate"

var limiter = rate.NewLimiter(rate.Limit(1.0/3600), 7)

//export Allow
func Allow() bool { return limiter.Allow() }

func main() {}
