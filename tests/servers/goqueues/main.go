// A pool of goroutines that take jobs from channels, with expvar: nobody takes from "mail", two workers from "sms".
//
// On its standard input: "mail N" and "sms N" put N jobs into a queue; it prints a line when they are there.
package main

import (
	"bufio"
	"expvar"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

type queue struct {
	jobs              chan int
	added, done, busy int64
	workers           int
}

func (q *queue) vars() interface{} {
	return map[string]interface{}{
		"len": len(q.jobs), "cap": cap(q.jobs), "workers": q.workers, "busy": atomic.LoadInt64(&q.busy),
		"added": atomic.LoadInt64(&q.added), "done": atomic.LoadInt64(&q.done),
	}
}

func main() {
	queues := map[string]*queue{
		"mail": {jobs: make(chan int, 1000)},
		"sms":  {jobs: make(chan int, 1000), workers: 2},
	}
	release := make(chan bool)
	for i := 0; i < queues["sms"].workers; i++ {
		go func() {
			for range queues["sms"].jobs {
				atomic.AddInt64(&queues["sms"].busy, 1)
				<-release
				atomic.AddInt64(&queues["sms"].busy, -1)
				atomic.AddInt64(&queues["sms"].done, 1)
			}
		}()
	}
	expvar.Publish("queues", expvar.Func(func() interface{} {
		return map[string]interface{}{"mail": queues["mail"].vars(), "sms": queues["sms"].vars()}
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, nil)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var name string
		var n int
		fmt.Sscan(input.Text(), &name, &n)
		for i := 0; i < n; i++ {
			if name == "release" {
				release <- true
				continue
			}
			queues[name].jobs <- i
			atomic.AddInt64(&queues[name].added, 1)
		}
		fmt.Println("done")
	}
}
