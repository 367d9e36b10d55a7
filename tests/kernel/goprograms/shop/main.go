// Decides at several places, and prints what was decided at which.
//
// shop COUNT [now|winding]: starts at once with "now", else after a line on stdin; ends after another line. With "winding" at one place only, in COUNT ways.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"

	"example.com/acme/shop/api"
)

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	in := bufio.NewReader(os.Stdin)
	winding := len(os.Args) > 2 && os.Args[2] == "winding"
	if len(os.Args) < 3 || winding {
		in.ReadString('\n')
	}
	decided := []map[string]interface{}{}
	var mu sync.Mutex
	tell := func(site string, ok bool) {
		mu.Lock()
		decided = append(decided, map[string]interface{}{"site": site, "allowed": ok})
		mu.Unlock()
	}
	server := api.New()
	handler := server.Handler()
	var all sync.WaitGroup
	for i := 0; winding && i < count; i++ {
		tell("winding", server.Winding(i))
	}
	for i := 0; !winding && i < count; i++ {
		tell("pay", server.Pay())
		tell("customer", server.Customer(fmt.Sprint("customer ", i%7)))
		tell("deep", server.Deep(i%20))
		tell("handler", api.Serve(handler))
		all.Add(1)
		go func() {
			defer all.Done()
			tell("main", server.All.Allow())
		}()
		all.Wait()
	}
	json.NewEncoder(os.Stdout).Encode(map[string]interface{}{"pid": os.Getpid(), "decisions": decided})
	in.ReadString('\n')
}
