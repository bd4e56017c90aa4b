// Command redis is an in-memory server that speaks enough of Redis for Argo CD's tests: nothing but Go is needed for it.
//
// It listens on the address that is its one argument, until it is killed.
package main

import (
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: redis ADDRESS")
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	for range time.Tick(time.Second) {
		server.FastForward(time.Second) // its clock stands still by itself, and keys would never expire
	}
}
