// Command redis is an in-memory server with the part of the Redis protocol that Argo CD needs. It is built with Go alone.
//
// Its only argument is the address on which it listens. It runs until it is killed.
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
		server.FastForward(time.Second) // its clock does not advance by itself, so keys would never expire
	}
}
