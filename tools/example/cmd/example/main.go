// Command example is a small controller that runs as one shard of a ring. Copy it for your own controller. Comments in run.go mark
// what sharding adds to an ordinary controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
)

func main() {
	os.Exit(start(os.Args[1:]))
}

// start returns the exit code. It must not be zero when the shard has lost its Lease: workers may still be running, and only the
// end of the process stops them for certain.
func start(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	options, err := parse(args, os.Stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}

	if err == nil {
		err = run(ctx, options)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)

		return 1
	}

	return 0
}
