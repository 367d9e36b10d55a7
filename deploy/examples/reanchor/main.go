// A sliding window on the wall clock that re-anchors at clock jumps: go run . [NOTICE_SOCKET]. Standard library only.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// SlidingWindow admits at most Limit a Window of wall time.
type SlidingWindow struct {
	sync.Mutex
	Limit  int
	Window int64
	stamps []int64
}

func (w *SlidingWindow) Allow() bool {
	w.Lock()
	defer w.Unlock()
	now := time.Now().UnixNano()
	for len(w.stamps) > 0 && w.stamps[0] <= now-w.Window {
		w.stamps = w.stamps[1:]
	}
	if len(w.stamps) >= w.Limit {
		return false
	}
	w.stamps = append(w.stamps, now)
	return true
}

// Shift moves every stamp with the clock, so that the window keeps its true length. A request between the jump and its notice
// (under a millisecond) counts as made before it, unless that would put it into the future.
func (w *SlidingWindow) Shift(size int64) int {
	w.Lock()
	defer w.Unlock()
	now := time.Now().UnixNano()
	for i, t := range w.stamps {
		if t+size <= now {
			w.stamps[i] = t + size
		}
	}
	return len(w.stamps)
}

// Follow is the lines to copy, for a goroutine of its own. An agent that does not listen is not waited for: the acknowledgement stays pending.
// Where there is no agent yet, or the connection ended, there may be another one: it is tried again each second.
func Follow(w *SlidingWindow, name, path string) {
	for ; ; time.Sleep(time.Second) {
		if conn, err := net.Dial("unix", path); err == nil {
			reanchor(w, name, conn)
			conn.Close()
		}
	}
}

func reanchor(w *SlidingWindow, name string, conn net.Conn) {
	var notice struct {
		ID   int64 `json:"id"`
		Size int64 `json:"size_ns"`
	}
	for lines := json.NewDecoder(conn); lines.Decode(&notice) == nil; {
		moved := w.Shift(notice.Size)
		conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		if err := json.NewEncoder(conn).Encode(map[string]any{"ack": notice.ID, "limiter": name}); err != nil && !os.IsTimeout(err) {
			return
		}
		fmt.Printf("re-anchored %d stamps by %d ns\n", moved, notice.Size)
	}
}

func main() {
	path := "/run/tickscope/notices.sock"
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	window := &SlidingWindow{Limit: 5, Window: int64(time.Minute)}
	go Follow(window, "example", path)
	for requests := bufio.NewScanner(os.Stdin); requests.Scan(); { // a line is a request
		fmt.Println(map[bool]string{true: "allowed", false: "refused"}[window.Allow()])
	}
}
