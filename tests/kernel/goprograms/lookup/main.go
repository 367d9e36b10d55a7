// Looks names up by Go's own resolver, one after the other, each in a goroutine of its own.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
)

func main() {
	for _, name := range os.Args[1:] {
		done := make(chan error)
		go func() {
			_, err := (&net.Resolver{PreferGo: true}).LookupIPAddr(context.Background(), name)
			done <- err
		}()
		fmt.Println(<-done)
	}
}
